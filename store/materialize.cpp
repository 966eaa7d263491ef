#include "store/materialize.hpp"
