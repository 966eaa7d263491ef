// PartRecord, its hashes, and the names that follow from a set.
#include "store/parts/part_record.hpp"

#include <gtest/gtest.h>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "tests/store/parts/part_fixture.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/contains.hpp"

namespace weightfs::test {
namespace {

PartRecord full_record() {
  PartRecord record = part_of(2, 4, {{"b.safetensors", {small_tensor("b")}}}).record;
  record.meta = {{"reward", "0.7"}};
  record.blobs = {{"config.json", 2, sha256(as_bytes(std::string_view("{}")))}};
  record.delta->changed_elements = 17;
  record.delta->packs = {{std::string(32, 'b') + "-0", 200, 100, Sha256{}}};
  record.features = {"xr"};
  return record;
}

TEST(PartRecordTest, ComesBackAsItWasWritten) {
  const PartRecord record = full_record();
  const std::string bytes = record.serialize();
  const PartRecord read = PartRecord::parse(bytes, "record");
  EXPECT_EQ(read.serialize(), bytes);
  EXPECT_EQ(read.part, 2u);
  EXPECT_EQ(read.parts, 4u);
  EXPECT_EQ(read.tag, "step-2");
  EXPECT_EQ(read.delta->packs.size(), 1u);
  EXPECT_EQ(read.content(), record.content());
  EXPECT_FALSE(read.snapshot);
}

TEST(PartRecordTest, EveryDamagedByteIsNoticed) {
  const std::string bytes = full_record().serialize();
  for (std::size_t i = 0; i < bytes.size(); i++) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_THROW(static_cast<void>(PartRecord::parse(damaged, "record")), Error) << i;
  }
  EXPECT_EQ(code_of([&] { static_cast<void>(PartRecord::parse(bytes.substr(1), "record")); }),
            ErrorCode::corrupt);
}

TEST(PartRecordTest, RefusesWhatCannotBe) {
  const auto refuses = [](const std::function<void(PartRecord&)>& change) {
    PartRecord record = full_record();
    change(record);
    std::string message;
    return code_of([&] { static_cast<void>(PartRecord::parse(record.serialize(), "record")); },
                   &message) == ErrorCode::corrupt &&
           contains(message, "record: ");
  };
  EXPECT_TRUE(refuses([](PartRecord& record) { record.part = 0; }));
  EXPECT_TRUE(refuses([](PartRecord& record) { record.part = 5; }));
  EXPECT_TRUE(refuses([](PartRecord& record) { record.parts = kPartsMax + 1; }));
  EXPECT_TRUE(refuses([](PartRecord& record) { record.version = 0; }));
  EXPECT_TRUE(refuses([](PartRecord& record) { record.delta.reset(); }));
  EXPECT_TRUE(refuses([](PartRecord& record) { record.set = "x"; }));
  EXPECT_TRUE(refuses([](PartRecord& record) { record.blobs[0].path = "../etc/passwd"; }));
  EXPECT_TRUE(refuses([](PartRecord& record) { record.tag = ".hidden"; }));
  EXPECT_TRUE(refuses([](PartRecord& record) { record.delta->packs[0].name = "../../x"; }));
}

TEST(PartRecordTest, AFeatureThatIsNotKnownIsNotSupported) {
  PartRecord record = full_record();
  record.features = {"later"};
  EXPECT_EQ(code_of([&] { static_cast<void>(PartRecord::parse(record.serialize(), "record")); }),
            ErrorCode::unsupported);
}

TEST(PartHashesTest, ComeBackAndMustFitTheLayout) {
  const auto layout = layout_of({{"a.safetensors", {small_tensor("x"), small_tensor("y")}}});
  SnapshotHashes hashes{{1, 2}, {{Sha256{std::byte{7}}}}};
  for (const bool with_pieces : {false, true}) {
    const std::string bytes = serialize_part_hashes(hashes, with_pieces);
    EXPECT_EQ(bytes.size(), part_hashes_size(*layout, with_pieces));
    const SnapshotHashes read = parse_part_hashes(bytes, *layout, with_pieces, "hashes");
    EXPECT_EQ(read.chunks, hashes.chunks);
    EXPECT_EQ(read.pieces.size(), with_pieces ? 1u : 0u);
    const auto parse = [&](const std::string& other, bool pieces) {
      return code_of(
          [&] { static_cast<void>(parse_part_hashes(other, *layout, pieces, "hashes")); });
    };
    EXPECT_EQ(parse(bytes + "x", with_pieces), ErrorCode::corrupt);
    EXPECT_EQ(parse(bytes, !with_pieces), ErrorCode::corrupt);
    EXPECT_EQ(parse("X" + bytes.substr(1), with_pieces), ErrorCode::corrupt);
  }
}

// Everything that hosts must agree on is in the set, and nothing else.
TEST(PartSetTest, FollowsFromRepositoryRunTagAndNumber) {
  const PartChoice choice{1, 4, "run"};
  const PartSet set = part_set("r", choice, "tag", 7);
  EXPECT_EQ(part_set("r", {3, 4, "run"}, "tag", 7).id, set.id);
  EXPECT_EQ(part_set("r", choice, "tag", 8).id, set.id);
  EXPECT_NE(part_set("q", choice, "tag", 7).id, set.id);
  EXPECT_NE(part_set("r", {1, 4, "run2"}, "tag", 7).id, set.id);
  EXPECT_NE(part_set("r", {1, 5, "run"}, "tag", 7).id, set.id);
  EXPECT_NE(part_set("r", choice, "tag2", 7).id, set.id);
  EXPECT_NE(part_set("r", {1, 4, "runt"}, "ag", 7).id, set.id) << "texts do not run together";
  EXPECT_NE(set.manifest_nonce(), set.snapshot_nonce());
  EXPECT_NE(part_set("r", choice, "tag", 8).manifest_nonce(), set.manifest_nonce());
  EXPECT_TRUE(is_nonce(set.id) && is_nonce(set.manifest_nonce()));
}

TEST(PartSetTest, RefusesAChoiceThatIsNone) {
  const auto code = [](const PartChoice& choice, std::string_view tag) {
    return code_of([&] { check_choice(choice, tag); });
  };
  EXPECT_NO_THROW(check_choice({4, 4, "run"}, "tag"));
  EXPECT_EQ(code({5, 4, "run"}, "tag"), ErrorCode::invalid);
  EXPECT_EQ(code({1, kPartsMax + 1, "run"}, "tag"), ErrorCode::invalid);
  EXPECT_EQ(code({1, 4, ""}, "tag"), ErrorCode::invalid);
  EXPECT_EQ(code({1, 4, "a\nb"}, "tag"), ErrorCode::invalid);
  EXPECT_EQ(code({1, 4, std::string(kRunBytesMax + 1, 'x')}, "tag"), ErrorCode::invalid);
  EXPECT_EQ(code({1, 4, "run"}, ""), ErrorCode::invalid);
}

TEST(PartSetTest, TakesTheTokenThatALauncherGives) {
  std::map<std::string, std::string, std::less<>> set;
  const auto token = [&] {
    return find_run_token([&](std::string_view name) -> std::optional<std::string> {
      const auto found = set.find(name);
      return found == set.end() ? std::nullopt : std::optional(found->second);
    });
  };
  EXPECT_FALSE(token());
  set = {{"SLURM_JOB_ID", "17"}};
  EXPECT_EQ(token(), "17.0");
  set["SLURM_RESTART_COUNT"] = "2";
  EXPECT_EQ(token(), "17.2");
  set["SLURM_STEP_ID"] = "3";  // of a second srun in the same job
  EXPECT_EQ(token(), "17.2.3");
}

// A host that is replaced is no restart that it counts, and a requeued job counts from 0 again.
TEST(PartSetTest, TakesNoTokenFromTorchrun) {
  for (const char* id : {"none", "job"}) {
    EXPECT_FALSE(find_run_token([&](std::string_view name) -> std::optional<std::string> {
      if (name == "TORCHELASTIC_RUN_ID") return id;
      return name.starts_with("SLURM") || name.starts_with("TORCH") ? std::optional("0")
                                                                    : std::nullopt;
    })) << id;
  }
}

TEST(PartSetTest, KeysHaveTheFormsOfTheFormat) {
  const PartSet set = part_set("r", {1, 4, "run"}, "tag", 7);
  EXPECT_EQ(keys::part_record(set, 2), "parts/7/" + set.id + "/2-of-4.json");
  EXPECT_EQ(keys::part_claim(set, 2), "parts/7/" + set.id + "/2-of-4.claim");
  EXPECT_EQ(find_part_version(keys::part_record(set, 2)), 7u);
  for (const char* key : {"parts/", "parts/7", "parts/7/", "parts/07/x", "parts/x/y", "packs/7/x",
                          "parts/0/x", "parts/99999999999999999999/x"}) {
    EXPECT_FALSE(find_part_version(key)) << key;
  }
}

}  // namespace
}  // namespace weightfs::test
