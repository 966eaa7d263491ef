// Part set: which parts make one version together, and the names that follow from that.
//
//     run's token, tag, number of parts  ->  set  ->  nonces of manifest and snapshot
//
// The token is new for each start of the trainer, so parts of two runs of one step never meet.
//
// Threads: values; pure functions.  Format: docs/FORMAT.md, "Parts".
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weightfs {

inline constexpr unsigned kPartsMax = 1024;
inline constexpr std::size_t kRunBytesMax = 200;

/// Which part of a version a host publishes.
struct PartChoice {
  unsigned part = 0;     // 1 to `parts`; 0: the whole version
  unsigned parts = 0;    // hosts that publish the version together
  std::string run = {};  // the token of this start of the trainer

  [[nodiscard]] bool is_part() const noexcept { return part != 0; }
};

/// Throws Error: invalid (numbers, a token that is empty or too long, no tag).
void check_choice(const PartChoice& choice, std::string_view tag);

/// What Slurm gives each process of one start of a trainer, and of no other start: SLURM_JOB_ID,
/// SLURM_RESTART_COUNT and SLURM_STEP_ID.  nullopt: they are not set, or torchrun is in between,
/// which starts processes again.
std::optional<std::string> find_run_token(
    const std::function<std::optional<std::string>(std::string_view name)>& environment);

/// The parts of one version.
struct PartSet {
  std::string id;  // 32 hex digits
  std::string tag;
  std::uint64_t version = 0;
  unsigned parts = 0;

  [[nodiscard]] std::string manifest_nonce() const { return nonce_of("manifest"); }
  [[nodiscard]] std::string snapshot_nonce() const { return nonce_of("snapshot"); }

 private:
  [[nodiscard]] std::string nonce_of(std::string_view what) const;
};

PartSet part_set(std::string_view repository, const PartChoice& choice, std::string_view tag,
                 std::uint64_t version);

/// "2, 3 and 7" of numbers, at most a few of them.
std::string parts_text(const std::vector<unsigned>& parts);

}  // namespace weightfs
