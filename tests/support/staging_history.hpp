// Staging history: random operations determined by a seed, each with one effect that happens or
// does not.
#pragma once

#include <cstdint>

#include "store/staging/staging.hpp"
#include "tests/support/random.hpp"

namespace weightfs::test {

/// Does the next operation; operations that staging refuses are part of the history.
void do_next(Staging& staging, Random& rng);

}  // namespace weightfs::test
