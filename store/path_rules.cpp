#include "store/path_rules.hpp"
