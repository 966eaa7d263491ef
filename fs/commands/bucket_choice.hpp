// Bucket choice: which of what was said about a bucket holds for a target.
//
// Threads: pure functions.
#pragma once

#include "fs/cli/options.hpp"
#include "fs/client/mount_status.hpp"
#include "store/s3/bucket_options.hpp"

namespace weightfs::fs {

/// What the command line says; if it says nothing, what the daemon of the target was given; else
/// what the environment and the configuration file say.  Those two are for every bucket of this
/// host, so for a directory they mean nothing; flags stay, and open_bucket() refuses them.
BucketOptions bucket_options_for(const Options& options, const Target& target);

}  // namespace weightfs::fs
