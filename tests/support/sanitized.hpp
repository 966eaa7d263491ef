// Sanitized: whether this build has a sanitizer, for tests that try so many cases that it takes
// minutes there: they may try every few of them, since the ordinary build tries all.
#pragma once

namespace weightfs::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace weightfs::test
