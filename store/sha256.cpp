#include "store/sha256.hpp"
