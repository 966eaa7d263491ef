#include "fs/options.hpp"
