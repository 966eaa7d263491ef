#include "fs/passthrough.hpp"
