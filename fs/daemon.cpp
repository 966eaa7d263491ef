#include "fs/daemon.hpp"
