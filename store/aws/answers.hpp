// AwsAnswers: parses the keys that a credential_process, a container or an instance returns.
//
//     {"AccessKeyId": ..., "SecretAccessKey": ..., "Token": ..., "Expiration": "2026-01-31T..Z"}
//
// Messages name fields, never values.  Threads: pure functions.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "store/aws/sigv4.hpp"

namespace weightfs {

/// Time of ISO 8601: "2026-01-31T12:00:00Z", with fractions of a second, with "+01:00" for 'Z'.
std::optional<std::chrono::system_clock::time_point> parse_iso_time(std::string_view text);

/// The same, where `what` names the text.  Throws Error: invalid.
std::chrono::system_clock::time_point get_iso_time(std::string_view text, std::string_view what);

/// `token_field`: "Token" or "SessionToken"; it and Expiration may be missing.  `source` becomes
/// AwsCredentials::source and names the answer in messages.  Throws Error: invalid.
AwsCredentials parse_json_keys(std::string_view json, std::string_view token_field,
                               const std::string& source);

/// What an answer without keys says instead, "CODE: MESSAGE" on one line; empty: nothing.
std::string find_json_refusal(std::string_view json);

/// "...WXYZ": the only form in which an access key's id is shown.
std::string shown_key_id(std::string_view access_key_id);

}  // namespace weightfs
