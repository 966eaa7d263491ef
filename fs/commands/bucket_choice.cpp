#include "fs/commands/bucket_choice.hpp"

#include "store/repository/open_bucket.hpp"

namespace weightfs::fs {

BucketOptions bucket_options_for(const Options& options, const Target& target) {
  if (options.bucket_flagged) return options.host.bucket;
  if (is_set(target.bucket)) return target.bucket;
  if (!directory_of_url(target.url).empty()) return {};
  return options.host.bucket;
}

}  // namespace weightfs::fs
