#include "store/safetensors.hpp"
