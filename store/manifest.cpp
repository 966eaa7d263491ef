#include "store/manifest.hpp"
