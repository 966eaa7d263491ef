// Sanitized: whether this build has a sanitizer.  Tests with so many cases that they would then
// take minutes may try a fraction of them, since the ordinary build tries all.
#pragma once

namespace weightfs::test {

#if defined(__has_feature)  // clang
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define WEIGHTFS_IS_SANITIZED
#endif
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(WEIGHTFS_IS_SANITIZED)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace weightfs::test
