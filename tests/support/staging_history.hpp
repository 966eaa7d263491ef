// Staging history: operations that a seed decides, each with one effect that is there or is not.
#pragma once

#include <cstdint>
#include <random>

#include "store/staging/staging.hpp"

namespace weightfs::test {

/// Does the next operation; what staging refuses is a part of the history.
void do_next(Staging& staging, std::mt19937_64& rng);

}  // namespace weightfs::test
