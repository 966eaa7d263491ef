#include "store/log.hpp"
