#include "store/checkpoint.hpp"
