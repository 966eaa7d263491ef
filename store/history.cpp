#include "store/history.hpp"
