#include "store/inspect/check_skip.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/format/manifest.hpp"
#include "store/materialize/plan.hpp"
#include "store/os/memory_budget.hpp"
#include "store/patches/tensor_table_id.hpp"
#include "store/repository/pieces.hpp"
#include "store/repository/skips.hpp"

namespace weightfs {
namespace {

[[noreturn]] void throw_unfit(const SkipRecord& record, const std::string& why) {
  std::string key = keys::skip_record(record.versions);
  const std::string message = fmt::format("object {}: {}", key, why);
  throw ObjectError(ErrorCode::corrupt, std::move(key), message);
}

std::shared_ptr<const Version> version_of(History& history, std::uint64_t number,
                                          const Sha256& manifest_sha256, const SkipRecord& record,
                                          const Context& context) {
  auto version = history.get(number, context);
  if (version->manifest_sha256 == manifest_sha256) return version;
  throw_unfit(record,
              fmt::format("it is of a version {} whose manifest has the SHA-256 {}, but "
                          "here it has {}",
                          number, to_hex(manifest_sha256), to_hex(version->manifest_sha256)));
}

/// That a pack has its size.
void check_end(Bucket& bucket, const std::string& key, std::uint64_t size_bytes,
               const Context& context) {
  std::array<std::byte, 2> bytes{};
  std::size_t found = 0;
  try {
    found = bucket.get(key, size_bytes - 1, bytes, context);
  } catch (const Error& error) {
    throw ObjectError(error.code(), key, error.what());
  }
  if (found == 1) return;
  throw ObjectError(ErrorCode::corrupt, key,
                    fmt::format("{} has another size than {} bytes", key, size_bytes));
}

}  // namespace

std::vector<std::shared_ptr<const PackIndex>> check_skip(History& history, const SkipRecord& record,
                                                         const Context& context) {
  const auto from = version_of(history, record.versions.from, record.from_sha256, record, context);
  const auto to = version_of(history, record.versions.to, record.to_sha256, record, context);
  const auto layout = history.layout(*to, context);
  const Plan plan = make_plan(history, from, {}, context);
  if (tensor_table_id(*plan.layout) != tensor_table_id(*layout)) {
    throw_unfit(record, "its two versions have different tensor tables");
  }
  Repository& repository = history.repository();
  MemoryBudget budget;
  PackRoom room(*layout, budget);
  std::vector<std::uint64_t> hashes = plan.hashes;
  std::vector<std::shared_ptr<const PackIndex>> packs;
  for (const PackRef& ref : record.delta.packs) {
    const std::string key = keys::skip_pack(record.versions, ref.name);
    packs.push_back(repository.get_pack_index(key, ref, *layout, context, &room));
    check_end(repository.bucket(context), key, ref.size_bytes, context);
    for (const PackChunk& chunk : packs.back()->chunks()) {
      hashes[layout->tensors()[chunk.tensor].first_chunk + chunk.chunk] = chunk.hash;
    }
  }
  if (const Sha256 found = root_of(hashes); found != to->manifest.root) {
    throw_unfit(record, fmt::format("it leads to chunk hashes with the root {}, but version {} has "
                                    "{}",
                                    to_hex(found), record.versions.to, to_hex(to->manifest.root)));
  }
  return packs;
}

}  // namespace weightfs
