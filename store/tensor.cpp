#include "store/tensor.hpp"
