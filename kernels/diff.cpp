#include "kernels/diff.hpp"
