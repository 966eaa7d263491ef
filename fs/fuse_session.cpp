#include "fs/fuse_session.hpp"
