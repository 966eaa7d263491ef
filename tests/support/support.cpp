#include "tests/support/support.hpp"
