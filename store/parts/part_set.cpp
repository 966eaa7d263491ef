#include "store/parts/part_set.hpp"

#include <fmt/format.h>

#include <array>
#include <span>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/base/path_rules.hpp"
#include "store/base/sha256.hpp"

namespace weightfs {
namespace {

constexpr std::size_t kPartsShown = 20;

/// The first half of the SHA-256 of texts, each after its length.
std::string half_hash(std::span<const std::string> texts) {
  std::string all;
  for (const std::string& text : texts) {
    append_le(all, std::uint64_t{text.size()});
    all += text;
  }
  const Sha256 hash = sha256(as_bytes(all));
  return to_hex(std::span(hash).first(hash.size() / 2));
}

}  // namespace

void check_choice(const PartChoice& choice, std::string_view tag) {
  const auto refuse = [](const std::string& message) { throw Error(ErrorCode::invalid, message); };
  if (choice.parts == 0 || choice.parts > kPartsMax || choice.part > choice.parts) {
    refuse(
        fmt::format("there is no part {} of {}: parts are numbered from 1, and a version has at "
                    "most {}",
                    choice.part, choice.parts, kPartsMax));
  }
  if (choice.run.empty()) {
    refuse(
        "a part needs a token that is new for each start of the trainer and the same on all hosts, "
        "so that parts of two runs do not mix: give it with --run (only Slurm sets one; torchrun "
        "does not tell one start from the next)");
  }
  if (choice.run.size() > kRunBytesMax || choice.run != escape_name(choice.run)) {
    refuse(fmt::format("the token of the run, '{}', must be text of at most {} bytes",
                       escape_name(choice.run), kRunBytesMax));
  }
  if (tag.empty()) {
    refuse("a part needs a tag, by which it finds the others: give the step with --tag");
  }
}

std::optional<std::string> find_run_token(
    const std::function<std::optional<std::string>(std::string_view name)>& environment) {
  // torchrun starts workers again without a trace: it does not count that a host was replaced, and
  // counts from 0 when it is started again itself, maybe with the same id.
  if (environment("TORCHELASTIC_RUN_ID")) return std::nullopt;
  const auto job = environment("SLURM_JOB_ID");
  if (!job || job->empty()) return std::nullopt;
  const auto step = environment("SLURM_STEP_ID");  // of each srun; none in the batch script
  return fmt::format("{}.{}{}", *job, environment("SLURM_RESTART_COUNT").value_or("0"),
                     step ? "." + *step : "");
}

PartSet part_set(std::string_view repository, const PartChoice& choice, std::string_view tag,
                 std::uint64_t version) {
  const std::array<std::string, 5> texts{"weightfs parts", std::string(repository), choice.run,
                                         std::string(tag), std::to_string(choice.parts)};
  return {half_hash(texts), std::string(tag), version, choice.parts};
}

std::string PartSet::nonce_of(std::string_view what) const {
  const std::array<std::string, 3> texts{std::string(what), id, std::to_string(version)};
  return half_hash(texts);
}

std::string parts_text(const std::vector<unsigned>& parts) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); i++) {
    if (i == kPartsShown) return text + fmt::format(" and {} more", parts.size() - i);
    const bool is_last = i + 1 == parts.size();
    text += fmt::format("{}{}", i == 0 ? "" : is_last ? " and " : ", ", parts[i]);
  }
  return text;
}

}  // namespace weightfs
