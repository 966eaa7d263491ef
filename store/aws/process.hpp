// AwsProcess: a profile's credential_process.
//
// It runs without a shell, in a process group of its own, without our descriptors, and with
// /dev/null as its input.  It gets no secrets from us.
//
// Threads: calls may run in parallel.
#pragma once

#include <chrono>
#include <string>

#include "store/aws/sigv4.hpp"
#include "store/base/context.hpp"

namespace weightfs {

/// `source` names it in messages.  Throws Error: invalid (it cannot be run, or answered anything
/// but Version 1), unavailable (it failed, or did not end within `timeout`), timed_out and
/// cancelled (of `context`).  It is killed where it did not end in time.
AwsCredentials run_credential_process(const std::string& command, const std::string& source,
                                      const Context& context,
                                      Clock::duration timeout = std::chrono::seconds(60));

}  // namespace weightfs
