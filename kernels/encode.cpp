#include "kernels/encode.hpp"
