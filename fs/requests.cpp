#include "fs/requests.hpp"
