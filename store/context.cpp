#include "store/context.hpp"
