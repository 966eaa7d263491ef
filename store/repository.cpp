#include "store/repository.hpp"
