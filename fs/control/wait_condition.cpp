#include "fs/control/wait_condition.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace weightfs::fs {
namespace {

using How = WaitEnd::How;

/// --follow fixes the host's version, and `name` is not here.
WaitEnd end_of_frozen(std::uint64_t version, const std::string& name, const Follow& follow) {
  return {How::gone, version,
          fmt::format("{} will not arrive here: --follow {} keeps this host at version {}", name,
                      to_string(follow), follow.version),
          ""};
}

/// An object of it was missing or wrong when it was last asked for; nullopt: that is not known.  A
/// bucket that is out of reach is asked again.
std::optional<WaitEnd> end_of_damaged(std::uint64_t version, const WaitFacts& facts) {
  const auto partial = facts.partial.find(version);
  if (partial == facts.partial.end()) return std::nullopt;
  const PartialProgress& progress = partial->second;
  if (!progress.error || !progress.is_damaged) return std::nullopt;
  const bool is_corrupt = progress.error->code() == ErrorCode::corrupt;
  return WaitEnd{is_corrupt ? How::damaged : How::failed, version,
                 fmt::format("version {} cannot be completed: {}", version, progress.error->what()),
                 ""};
}

/// For a version that opens by name, if it did not when it was last opened or asked for.  Nothing
/// asks for it again here, so only what the bucket itself lacks counts.
std::optional<WaitEnd> end_of_unopened(std::uint64_t version, const WaitFacts& facts) {
  const auto partial = facts.partial.find(version);
  if (partial == facts.partial.end() || !partial->second.error) return std::nullopt;
  const ErrorCode code = partial->second.error->code();
  const bool lasts = code == ErrorCode::corrupt || code == ErrorCode::not_found;
  return lasts ? end_of_damaged(version, facts) : std::nullopt;
}

/// `name`: for messages: "version 3", "tag step-42: version 3".
std::optional<WaitEnd> end_of_version(std::uint64_t version, const std::string& name,
                                      const WaitFacts& facts) {
  const Catalog& catalog = *facts.catalog;
  if (catalog.has_images(version)) return WaitEnd{How::here, version, "", ""};
  // A version that will arrive by itself is awaited until it is here.
  const bool is_followed = facts.follow.kind == Follow::Kind::latest || version == facts.followed;
  const bool comes = is_followed && version > catalog.latest;
  if (version <= facts.nameable && !comes) {
    return end_of_unopened(version, facts).value_or(WaitEnd{How::here, version, "", ""});
  }
  if (facts.nameable > 0) return std::nullopt;
  if (facts.follow.kind == Follow::Kind::version && version != facts.follow.version) {
    return end_of_frozen(version, name, facts.follow);
  }
  if (version > catalog.latest) return std::nullopt;
  return WaitEnd{
      How::gone, version,
      fmt::format(
          "{} is not here: this mount is at version {}, and no longer has its files; weightfs "
          "export can write them",
          name, catalog.latest),
      ""};
}

std::optional<WaitEnd> end_of_latest(std::uint64_t than, const WaitFacts& facts) {
  const Catalog& catalog = *facts.catalog;
  if (facts.follow.kind == Follow::Kind::version && facts.follow.version <= than) {
    return end_of_frozen(than, fmt::format("a version above {}", than), facts.follow);
  }
  if (catalog.latest <= than) return std::nullopt;
  return WaitEnd{How::here, catalog.latest, "", ""};
}

/// Every byte of it that this host keeps is here.
std::optional<WaitEnd> end_of_ready(std::optional<std::uint64_t> wanted, const WaitFacts& facts) {
  const Catalog& catalog = *facts.catalog;
  const std::uint64_t version = wanted.value_or(catalog.latest);  // 0: there is none yet
  if (const auto found = catalog.versions.find(version); found != catalog.versions.end()) {
    // If an earlier mount kept fewer files, the missing ones are added only to the newest version.
    if (version == catalog.latest && found->second->lacks_files) return std::nullopt;
    return WaitEnd{How::here, version, "", ""};
  }
  if (!facts.partial.contains(version) && wanted && facts.nameable == 0) {
    // A sync's directory has removed it, and will not fetch it again.
    return end_of_version(version, fmt::format("version {}", version), facts);
  }
  return end_of_damaged(version, facts);
}

/// For a hand-over that is in publish/.
std::optional<WaitEnd> end_of(const HandOver& one) {
  if (one.state == HandOver::State::conflict) {
    return WaitEnd{How::conflict, 0, fmt::format("{}: {}", one.name, one.error), ""};
  }
  if (one.state == HandOver::State::failed) {
    return WaitEnd{How::failed, 0, fmt::format("{}: {}", one.name, one.error), ""};
  }
  return std::nullopt;
}

/// For a hand-over that has left publish/.
std::optional<WaitEnd> end_of(const HandOverEnd& one, const Catalog& catalog) {
  switch (one.how) {
    case HandOverEnd::How::published:
      if (one.version > catalog.latest && !catalog.versions.contains(one.version)) {
        return std::nullopt;
      }
      return WaitEnd{How::here, one.version, "", one.left};
    case HandOverEnd::How::conflict:
      return WaitEnd{How::conflict, 0, fmt::format("{}: {}", one.name, one.error), ""};
    case HandOverEnd::How::failed:
      return WaitEnd{How::failed, 0, fmt::format("{}: {}", one.name, one.error), ""};
    case HandOverEnd::How::taken_back:
      return WaitEnd{
          How::taken_back, 0,
          fmt::format("{} was taken out of publish/ before it became a version", one.name), ""};
  }
  return std::nullopt;
}

std::optional<WaitEnd> end_of_order(std::uint64_t order, const WaitFacts& facts) {
  for (const HandOver& one : facts.queue) {
    if (one.order == order) return end_of(one);
  }
  for (const HandOverEnd& one : facts.ended) {
    if (one.order == order) return end_of(one, *facts.catalog);
  }
  return WaitEnd{
      How::failed, 0,
      fmt::format(
          "the outcome of hand-over {} is no longer known here; weightfs log lists the versions",
          order),
      ""};
}

/// Whether the version came after the hand-over had ended, or is what became of it.
bool is_later(std::uint64_t version, const HandOverEnd& end) {
  return end.how == HandOverEnd::How::published ? version >= end.version : version > end.newest;
}

std::optional<WaitEnd> end_of_tag(const std::string& tag, const WaitFacts& facts,
                                  ControlHandlers::WaitState& state) {
  const auto has_tag = [&](const auto& one) { return one.tag == tag; };
  // The newest with the tag: an older one may be queued under another name.
  const auto queued = std::find_if(facts.queue.rbegin(), facts.queue.rend(), has_tag);
  if (queued != facts.queue.rend()) {
    state.order = queued->order;
    return end_of(*queued);
  }
  const Catalog& catalog = *facts.catalog;
  const auto found = catalog.tags.find(tag);
  const auto ended = std::find_if(facts.ended.rbegin(), facts.ended.rend(), has_tag);
  const bool has_version = found != catalog.tags.end(), has_ended = ended != facts.ended.rend();
  if (has_version && (!has_ended || is_later(found->second, *ended))) {
    return end_of_version(found->second, fmt::format("{}, version {},", tag, found->second), facts);
  }
  if (!has_ended) return std::nullopt;
  return end_of(*ended, catalog);
}

}  // namespace

std::optional<WaitEnd> find_wait_end(const WaitFor& what, const WaitFacts& facts,
                                     ControlHandlers::WaitState& state) {
  if (what.ready) return end_of_ready(what.version, facts);
  if (what.version) {
    return end_of_version(*what.version, fmt::format("version {}", *what.version), facts);
  }
  if (what.newer_than) return end_of_latest(*what.newer_than, facts);
  if (what.order) return end_of_order(*what.order, facts);
  if (state.order) return end_of_order(*state.order, facts);
  return end_of_tag(what.tag.value_or(""), facts, state);
}

}  // namespace weightfs::fs
