#include "store/json.hpp"
