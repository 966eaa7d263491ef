#include "store/sync.hpp"
