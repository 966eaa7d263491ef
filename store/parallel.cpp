#include "store/parallel.hpp"
