#include "fs/open_table.hpp"
