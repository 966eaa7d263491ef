// Sanitized: whether this build has a sanitizer.  Tests with so many cases that they would then
// take minutes may try a fraction of them, since the ordinary build tries all.
#pragma once

namespace weightfs::test {

#ifdef WEIGHTFS_SANITIZED  // by tests/CMakeLists.txt: under AddressSanitizer tests themselves are ordinary code
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace weightfs::test
