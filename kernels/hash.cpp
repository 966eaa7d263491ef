#include "kernels/hash.hpp"
