#include "store/layout.hpp"
