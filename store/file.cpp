#include "store/file.hpp"
