#include "fs/cache/cache_advice.hpp"

#include <fmt/format.h>

#include "fs/base/text_table.hpp"
#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/sync/base_renewal.hpp"

namespace weightfs::fs {
namespace {

constexpr unsigned kWarmPercent = 99;  // the rest is not worth an option

/// Why page faults are slow here.
enum class Slow { no, cold, served, no_room };

Slow slowness(const CacheState& cache, std::string_view mode) {
  if (!cache.fits()) return Slow::no_room;
  if (mode == "daemon") return Slow::served;
  return cache.residency.percent() < kWarmPercent ? Slow::cold : Slow::no;
}

/// What happens to the part that is not in the page cache; "" if there is nothing to say.
std::string rest_text(const CacheState& cache) {
  if (cache.residency.is_whole()) return "";
  switch (cache.warming) {
    case CacheState::Warming::idle:
      return "";
    case CacheState::Warming::reading:
      return "; weightfs is prefetching the rest";
    case CacheState::Warming::no_room:
      return "; the rest is not prefetched: there is no room for the whole version";
    case CacheState::Warming::failed:
      return "; the rest could not be prefetched: " + cache.error;
    case CacheState::Warming::off:
      return "; the rest is not prefetched: --warm off";
  }
  return "";
}

Finding page_cache_finding(const CacheState& cache) {
  const bool failed = cache.warming == CacheState::Warming::failed;
  const Finding::State state = cache.residency.is_whole() ? Finding::State::good
                               : failed                   ? Finding::State::warning
                                                          : Finding::State::note;
  return {"page cache", state,
          fmt::format("{}{} % of version {} ({}){}", cache.residency.is_exact ? "" : "about ",
                      cache.residency.percent(), cache.version,
                      human_bytes(cache.residency.size_bytes), rest_text(cache))};
}

Finding memory_finding(const CacheState& cache) {
  if (cache.is_in_memory) {
    return {"memory", Finding::State::good, "the version lies in memory: --images memory"};
  }
  if (!cache.room)
    return {"memory", Finding::State::note, "the size of this host's memory is unknown"};
  if (!cache.fits()) {
    return {"memory", Finding::State::warning,
            no_room_text(cache.version, cache.residency.size_bytes, *cache.room)};
  }
  return {"memory", Finding::State::good,
          fmt::format("the version fits: there is room for {} ({})", human_bytes(cache.room->bytes),
                      cache.room->limit_text())};
}

/// Which --images suits the host.
Finding images_finding(const CacheState& cache) {
  const std::uint64_t two_versions = 2 * cache.residency.size_bytes;
  if (cache.is_in_memory) {
    return {"images", Finding::State::good,
            fmt::format("in memory: {} for two versions, which the kernel cannot take back; the "
                        "disk is written for one version in {}",
                        human_bytes(two_versions), kBaseVersions)};
  }
  if (cache.room && two_versions <= cache.room->bytes) {
    return {"images", Finding::State::good,
            fmt::format("on the disk, which every version is written to as a whole; a reader's "
                        "mount with --images memory would fit: it takes {}, and writes one version "
                        "in {}",
                        human_bytes(two_versions), kBaseVersions)};
  }
  return {"images", Finding::State::good, "on the disk: two versions do not fit into memory"};
}

Finding vllm_finding(Slow slow) {
  switch (slow) {
    case Slow::no:
      break;
    case Slow::cold:
      return {"vLLM", Finding::State::note,
              "start it with --safetensors-load-strategy prefetch: a part comes from the disk; "
              "prefetch reads it in large pieces, while the default waits for one page fault after "
              "another"};
    case Slow::served:
      return {"vLLM", Finding::State::note,
              "start it with --safetensors-load-strategy prefetch: the daemon answers every read "
              "here, which is slow for the default's page faults and less so for large pieces"};
    case Slow::no_room:
      return {"vLLM", Finding::State::note,
              "start it with --safetensors-load-strategy eager: it reads one file after another; "
              "prefetched pages would be dropped before they are used"};
  }
  return {"vLLM", Finding::State::good,
          "needs no option: its default loads from the page cache at full speed"};
}

Finding sglang_finding(Slow slow) {
  if (slow == Slow::no) {
    return {"SGLang", Finding::State::good,
            "needs no option: its default loads from the page cache at full speed"};
  }
  return {"SGLang", Finding::State::note,
          "start it with --weight-loader-disable-mmap: it then reads in large pieces, for the same "
          "reason"};
}

Finding::State parse_state(const std::string& text) {
  for (const auto state : {Finding::State::good, Finding::State::note, Finding::State::warning}) {
    if (text == to_string(state)) return state;
  }
  return Finding::State::bad;
}

/// Returns: nullptr if the status has no object `cache`.
const Json* find_cache(const Json& status) {
  const auto found = status.is_object() ? status.find("cache") : status.end();
  return status.is_object() && found != status.end() && found->is_object() ? &*found : nullptr;
}

}  // namespace

std::vector<Finding> advise(const CacheState& cache, std::string_view mode) {
  if (cache.version == 0) {
    return {{"page cache", Finding::State::note, "there is no complete version here yet"}};
  }
  const Slow slow = slowness(cache, mode);
  return {page_cache_finding(cache), memory_finding(cache), vllm_finding(slow),
          sglang_finding(slow), images_finding(cache)};
}

std::string advice_text(const std::vector<Finding>& findings) {
  TextTable table({{}, {}});
  for (const Finding& finding : findings) {
    table.add({finding.what, fmt::format("{}{}", prefix_of(finding.state), finding.text)});
  }
  return table.text();
}

Json cache_json(const CacheState& cache, std::string_view mode) {
  Json room = nullptr;
  if (cache.room) {
    room = {{"bytes", cache.room->bytes},
            {"limit", cache.room->limit_bytes},
            {"cgroup", cache.room->cgroup.empty() ? Json(nullptr) : Json(cache.room->cgroup)}};
  }
  Json findings = Json::array();
  for (const Finding& finding : advise(cache, mode)) {
    findings.push_back(
        {{"what", finding.what}, {"state", to_string(finding.state)}, {"text", finding.text}});
  }
  return {{"version", cache.version},
          {"bytes", cache.residency.size_bytes},
          {"cached", cache.residency.cached_bytes},
          {"percent", cache.residency.percent()},
          {"exact", cache.residency.is_exact},
          {"warming", to_string(cache.warming)},
          {"fits", cache.fits()},
          {"in_memory", cache.is_in_memory},
          {"room", std::move(room)},
          {"findings", std::move(findings)}};
}

std::vector<Finding> findings_of(const Json& status) {
  const Json* const cache = find_cache(status);
  if (cache == nullptr) return {};
  std::vector<Finding> findings;
  for (const Json& one : json_field(*cache, "findings", "cache")) {
    findings.push_back({json_string(one, "what", "cache"),
                        parse_state(json_string(one, "state", "cache")),
                        json_string(one, "text", "cache")});
  }
  return findings;
}

std::vector<Finding> advise_here(const Json& status, const std::optional<MemoryRoom>& room) {
  const Json* const cache = find_cache(status);
  if (cache == nullptr || !room) return {};
  const std::uint64_t version = json_uint(*cache, "version", "cache");
  const std::uint64_t size = json_uint(*cache, "bytes", "cache");
  const bool fits_there = json_field(*cache, "fits", "cache") == true;
  // That memory is the daemon's, whoever reads.
  const auto in_memory = cache->find("in_memory");
  if (in_memory != cache->end() && *in_memory == true) return {};
  if (!fits_there || version == 0 || size <= room->bytes) return {};
  return {{"memory here", Finding::State::warning, no_room_text(version, size, *room)}};
}

}  // namespace weightfs::fs
