#include "store/pack.hpp"
