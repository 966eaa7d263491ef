#include "fs/commands/host_choice.hpp"

#include <cstdlib>
#include <optional>
#include <string_view>

#include "fs/control/mount_record.hpp"
#include "store/repository/open_bucket.hpp"

namespace weightfs::fs {

BucketOptions bucket_options_for(const Options& options, const Target& target) {
  if (options.bucket_flagged) return options.host.bucket;
  if (is_set(target.bucket)) return target.bucket;
  if (!directory_of_url(target.url).empty()) return {};
  return options.host.bucket;
}

HostOptions host_options(const Options& options, const std::string& name) {
  HostOptions host = options.host;
  const Target target{canonical_url(options.target), {}, {}};
  host.url = target.url;
  host.bucket = bucket_options_for(options, target);
  if (!host.store.empty()) host.store = std::filesystem::absolute(host.store);
  if (!host.seed.empty()) host.seed = std::filesystem::absolute(host.seed);
  host.words = words_again(name, host.url, options.directory, options.flags);
  return host;
}

PartChoice part_choice(const Options& options) {
  PartChoice choice = options.part;
  if (choice.is_part() && choice.run.empty()) {
    choice.run = find_run_token([](std::string_view name) -> std::optional<std::string> {
                   const char* const value = std::getenv(std::string(name).c_str());
                   return value == nullptr ? std::nullopt : std::optional<std::string>(value);
                 }).value_or("");
  }
  return choice;
}

}  // namespace weightfs::fs
