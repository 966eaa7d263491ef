#include "store/catalog.hpp"
