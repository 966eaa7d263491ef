// Secret names: environment variables whose value must not be written down or shown.
//
// Threads: pure functions.
#pragma once

#include <string_view>

namespace weightfs::fs {

/// By what the name sounds like: AWS_SECRET_KEY, GITHUB_TOKEN, DB_PASSWORD.
bool is_secret_name(std::string_view name);

}  // namespace weightfs::fs
