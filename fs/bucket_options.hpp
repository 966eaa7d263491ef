// Bucket options: which of what was said about a bucket holds for a target.
//
// Threads: pure functions.
#pragma once

#include <string>

#include "fs/mount_status.hpp"
#include "fs/options.hpp"
#include "store/json.hpp"
#include "store/s3_settings.hpp"

namespace weightfs::fs {

/// Whether anything is said.
bool is_set(const BucketOptions& options) noexcept;

/// What the command line says; if it says nothing, what the daemon of the target was given; else
/// what the environment and the configuration file say.  Those two are for every bucket of this
/// host, so for a directory they mean nothing; flags stay, and open_bucket() refuses them.
BucketOptions bucket_options_for(const Options& options, const Target& target);

/// null if nothing is said.  Holds no secret.
Json to_json(const BucketOptions& options);

/// Of a status; of an older weightfs, which has none, nothing.
/// Throws Error: corrupt, naming `what`.
BucketOptions bucket_options_from(const Json& status, const std::string& what);

}  // namespace weightfs::fs
