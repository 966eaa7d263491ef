#include "store/db.hpp"
