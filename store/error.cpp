#include "store/error.hpp"
