#include "fs/commands.hpp"
