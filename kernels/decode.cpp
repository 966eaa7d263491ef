#include "kernels/decode.hpp"
