#include "store/dir_bucket.hpp"
