#include "store/verify.hpp"
