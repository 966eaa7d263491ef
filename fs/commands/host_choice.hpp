// Host choice: which options hold for a target: those of its bucket, all of a mount or a sync, and
// the token of a part.
//
// Threads: pure functions.
#pragma once

#include <string>

#include "fs/cli/options.hpp"
#include "fs/client/mount_status.hpp"
#include "fs/runtime/host_options.hpp"
#include "store/parts/part_set.hpp"
#include "store/s3/bucket_options.hpp"

namespace weightfs::fs {

/// The command line's options; if it has none, those that the target's daemon was given; otherwise
/// those of the environment and the configuration file.  The last two apply to every bucket of this
/// host, so they are ignored for a directory; flags stay, and open_bucket() refuses them.
BucketOptions bucket_options_for(const Options& options, const Target& target);

/// Of a mount or a sync.  Adds to the command line's options: the canonical URL, the bucket options
/// that apply to it, the absolute path of the store, and the words that run the command `name`
/// again.  Throws Error: invalid (the URL).
HostOptions host_options(const Options& options, const std::string& name);

/// With the token of the run: as given, or as a launcher sets it.
PartChoice part_choice(const Options& options);

}  // namespace weightfs::fs
