#include "store/bucket.hpp"
