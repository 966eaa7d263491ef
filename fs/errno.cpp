#include "fs/errno.hpp"
