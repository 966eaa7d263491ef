// Bucket choice: which bucket options apply to a target.
//
// Threads: pure functions.
#pragma once

#include "fs/cli/options.hpp"
#include "fs/client/mount_status.hpp"
#include "store/s3/bucket_options.hpp"

namespace weightfs::fs {

/// The command line's options; if it has none, those that the target's daemon was given; otherwise
/// those of the environment and the configuration file.  The last two apply to every bucket of this
/// host, so they are ignored for a directory; flags stay, and open_bucket() refuses them.
BucketOptions bucket_options_for(const Options& options, const Target& target);

}  // namespace weightfs::fs
