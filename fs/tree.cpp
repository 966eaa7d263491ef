#include "fs/tree.hpp"
