#include "fs/mount_point.hpp"
