#include "store/bytes.hpp"
