#include "store/compress.hpp"
