#include "store/publish.hpp"
