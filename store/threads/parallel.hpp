// Parallel: runs independent pieces of work on a few threads, and hands out the first error.
#pragma once

#include <cstddef>
#include <functional>
#include <system_error>

#include "store/base/context.hpp"

namespace weightfs {

/// Calls work(i) once for every i < count, on `threads` threads (0: work_threads()), in about
/// ascending order; on fewer, at worst the caller's, where the system refuses threads.  After an
/// exception no new piece is started; when all threads are done, the exception of the lowest piece
/// is rethrown, which is the one that a single thread would have met. Checks `context` before each
/// piece.
void parallel_for(std::size_t count, unsigned threads, const Context& context,
                  const std::function<void(std::size_t index)>& work);

/// A line in the log, once: a thread was refused, and its work is done without it.
void note_refused_thread(const std::system_error& error);

}  // namespace weightfs
