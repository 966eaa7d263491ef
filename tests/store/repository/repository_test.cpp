#include "store/repository/repository.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "store/base/bytes.hpp"
#include "store/base/compress.hpp"
#include "store/base/error.hpp"
#include "tests/support/code_of.hpp"
#include "tests/support/memory_bucket.hpp"
#include "tests/support/small_versions.hpp"
#include "tests/support/support.hpp"

namespace weightfs {
namespace {

using test::code_of;
using test::commit_versions;
using test::make_manifest;
using test::make_opaque_layout;
using test::MemoryBucket;
using test::TempDir;

constexpr std::string_view kRepositoryId = "0123456789abcdef0123456789abcdef";

std::string record_of(std::string_view id) {
  return R"({"created":1790000000,"format":1,"id":")" + std::string(id) +
         R"(","public_keys":[],"required_features":[]})";
}

// A repository in memory; it owns `bucket`.
struct RepositoryFixture {
  MemoryBucket* bucket = new MemoryBucket;
  std::unique_ptr<Repository> repository = open();

  std::unique_ptr<Repository> open() {
    bucket->replace(keys::kRecord, record_of(kRepositoryId));
    return Repository::open(std::unique_ptr<Bucket>(bucket), {});
  }
};

ErrorCode open_code(std::string_view record, std::string* message = nullptr) {
  auto bucket = std::make_unique<MemoryBucket>();
  bucket->replace(keys::kRecord, std::string(record));
  return code_of([&] { Repository::open(std::move(bucket), {}); }, message);
}

// ---- the record ----

TEST(Repository, IsMadeOnceAndFoundAgain) {
  const TempDir directory;
  const std::string url = "file://" + (directory / "runs/a").string();
  bool created = false;
  const auto made = Repository::init(url, created, {});
  EXPECT_TRUE(created);
  EXPECT_EQ(made->url(), url);
  EXPECT_EQ(made->id().size(), 32u);

  const auto again = Repository::init(url + "/", created, {});
  EXPECT_FALSE(created);
  EXPECT_EQ(again->id(), made->id());
  EXPECT_EQ(Repository::open(url, {})->id(), made->id());

  const auto files = test::read_tree(directory / "runs/a");
  ASSERT_EQ(files.size(), 1u) << "the probe must be gone";
  EXPECT_EQ(files.begin()->first, "weightfs.json");
  EXPECT_EQ(files.begin()->second.find(R"({"created":)"), 0u);
  EXPECT_NE(files.begin()->second.find(R"("format":1,"id":")" + made->id() +
                                       R"(","public_keys":[],"required_features":[]})"),
            std::string::npos)
      << files.begin()->second;
}

TEST(Repository, MadeByManyAtOnceIsOne) {
  const TempDir directory;
  const std::string url = "file://" + (directory / "run").string();
  std::vector<std::string> ids(6);
  std::vector<int> created(6);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < ids.size(); i++) {
      threads.emplace_back([&, i] {
        bool mine = false;
        ids[i] = Repository::init(url, mine, {})->id();
        created[i] = mine;
      });
    }
  }
  EXPECT_EQ(std::count(created.begin(), created.end(), 1), 1);
  for (const std::string& id : ids) EXPECT_EQ(id, ids[0]);
}

TEST(Repository, SaysHowToMakeOne) {
  const TempDir directory;
  for (const std::string& path : {directory.path().string(), (directory / "absent").string()}) {
    std::string message;
    EXPECT_EQ(code_of([&] { Repository::open(path, {}); }, &message), ErrorCode::not_found);
    EXPECT_EQ(message, "no weightfs repository at file://" + path +
                           "; create one with: weightfs init file://" + path);
  }
  EXPECT_FALSE(std::filesystem::exists(directory / "absent"));
}

// It was said that there is no repository, with the advice to create one.
TEST(Repository, AMissingProfileIsNotAMissingRepository) {
  BucketOptions options;
  options.profile = "no-such-profile";
  std::string message;
  EXPECT_EQ(code_of([&] { Repository::open("s3://bucket/run", {}, options); }, &message),
            ErrorCode::invalid);
  EXPECT_NE(message.find("'no-such-profile'"), std::string::npos) << message;
  EXPECT_EQ(message.find("weightfs init"), std::string::npos) << message;
}

TEST(Repository, RefusesANewerFormatBeforeAllElse) {
  std::string message;
  EXPECT_EQ(open_code(R"({"format":2,"id":7})", &message), ErrorCode::unsupported);
  EXPECT_NE(message.find("format 2"), std::string::npos) << message;
  EXPECT_EQ(open_code(R"({"format":1,"id":7,"required_features":["xr"]})", &message),
            ErrorCode::unsupported);
  EXPECT_NE(message.find("xr"), std::string::npos) << message;
}

TEST(Repository, RefusesADamagedRecord) {
  for (const char* record :
       {"", "{", "[]", "{}", R"({"format":1})", R"({"format":1,"required_features":[]})",
        R"({"format":0,"id":"0123456789abcdef0123456789abcdef","required_features":[]})",
        R"({"format":1,"id":"../../../../etc/passwd","required_features":[]})",
        R"({"format":1,"id":"0123456789ABCDEF0123456789ABCDEF","required_features":[]})",
        R"({"format":1,"id":"0123456789abcdef0123456789abcdef","required_features":{}})"}) {
    EXPECT_EQ(open_code(record), ErrorCode::corrupt) << record;
  }
  EXPECT_EQ(open_code(std::string(2u << 20, ' ')), ErrorCode::corrupt);
}

TEST(Repository, IgnoresUnknownFieldsOfTheRecord) {
  auto bucket = std::make_unique<MemoryBucket>();
  bucket->replace(keys::kRecord, R"({"format":1,"future":[{}],"id":")" +
                                     std::string(kRepositoryId) + R"(","required_features":[]})");
  EXPECT_EQ(Repository::open(std::move(bucket), {})->id(), kRepositoryId);
}

// ---- keys ----

TEST(Repository, NamesObjectsAsTheFormatSays) {
  Sha256 id{};
  id[0] = std::byte{0xAB};
  const std::string hex = "ab" + std::string(62, '0');
  EXPECT_EQ(keys::manifest(42), "versions/00000000000000000042.json");
  EXPECT_EQ(keys::layout(id), "layouts/" + hex);
  EXPECT_EQ(keys::blob(id), "blobs/" + hex);
  EXPECT_EQ(keys::pack(42, "n-0"), "packs/42/n-0.safetensors");
  EXPECT_EQ(keys::snapshot_file(1, "n", "sub/x.safetensors"), "snapshots/1/n/sub/x.safetensors");
  EXPECT_EQ(keys::snapshot_hashes(1, "n"), "snapshots/1/n/.hashes");
}

// ---- versions ----

TEST(Repository, CommitsAndFindsVersions) {
  RepositoryFixture at;
  const auto versions = commit_versions(*at.repository, 3);
  for (const Version& version : versions) {
    const auto found = at.repository->find_version(version.number(), {});
    ASSERT_TRUE(found);
    EXPECT_EQ(found->manifest_bytes, version.manifest_bytes);
    EXPECT_EQ(found->manifest_sha256, version.manifest_sha256);
    EXPECT_EQ(found->manifest_sha256, sha256(as_bytes(found->manifest_bytes)));
    EXPECT_EQ(found->manifest.tag, version.manifest.tag);
  }
  for (const std::uint64_t absent :
       {std::uint64_t{0}, std::uint64_t{4}, kVersionMax + 1, ~std::uint64_t{0}}) {
    EXPECT_FALSE(at.repository->find_version(absent, {}));
  }
}

TEST(Repository, KnowsWhenAManifestWasLastAnswered) {
  RepositoryFixture at;
  EXPECT_EQ(at.repository->last_answer(), Clock::time_point{});
  EXPECT_FALSE(at.repository->find_version(1, {}));
  const auto none = at.repository->last_answer();
  EXPECT_GT(none, Clock::time_point{});
  commit_versions(*at.repository, 1);
  EXPECT_TRUE(at.repository->find_version(1, {}));
  const auto found = at.repository->last_answer();
  EXPECT_GT(found, none);
  at.bucket->fail_key("", ErrorCode::unavailable);
  EXPECT_EQ(code_of([&] { at.repository->find_version(1, {}); }), ErrorCode::unavailable);
  EXPECT_EQ(at.repository->last_answer(), found);
}

TEST(Repository, TheSecondCommitOfANumberIsAConflict) {
  RepositoryFixture at;
  const auto versions = commit_versions(*at.repository, 2);
  const Manifest loser = make_manifest(at.repository->id(), &versions[0], "mine");
  std::string message;
  EXPECT_EQ(code_of([&] { at.repository->commit(loser, {}); }, &message), ErrorCode::conflict);
  EXPECT_NE(message.find("version 2 was published by another writer (tag step-2, at "
                         "2026-09-21 14:13:22 UTC); run the command again"),
            std::string::npos)
      << message;
  EXPECT_EQ(at.repository->find_version(2, {})->manifest.nonce, versions[1].manifest.nonce);
}

TEST(Repository, ALostReplyOfACommitIsSettledByReadingBack) {
  RepositoryFixture at;
  const auto first = commit_versions(*at.repository, 1);
  const Manifest mine = make_manifest(at.repository->id(), &first[0]);
  at.bucket->lose_reply(std::string(keys::kVersions));
  EXPECT_EQ(at.repository->commit(mine, {}).manifest.nonce, mine.nonce);
  EXPECT_EQ(at.repository->commit(mine, {}).number(), 2u) << "once more finds its own nonce";
}

TEST(Repository, ALostReplyOfALostRaceIsAConflict) {
  RepositoryFixture at;
  const auto versions = commit_versions(*at.repository, 2);
  at.bucket->lose_reply(std::string(keys::kVersions));
  const Manifest loser = make_manifest(at.repository->id(), &versions[0]);
  EXPECT_EQ(code_of([&] { at.repository->commit(loser, {}); }), ErrorCode::conflict);
}

TEST(Repository, ACommitThatDidNotArriveSaysSo) {
  RepositoryFixture at;
  const Manifest manifest = make_manifest(at.repository->id(), nullptr);
  for (const ErrorCode code : {ErrorCode::unavailable, ErrorCode::timed_out, ErrorCode::cancelled,
                               ErrorCode::no_space, ErrorCode::permission, ErrorCode::io}) {
    at.bucket->fail_call(1, code);
    EXPECT_EQ(code_of([&] { at.repository->commit(manifest, {}); }), code);
    EXPECT_FALSE(at.repository->find_version(1, {}));
  }
  EXPECT_EQ(at.repository->commit(manifest, {}).number(), 1u);
}

TEST(Repository, ACommitWithoutAReplyMayStillBeCarriedOut) {
  RepositoryFixture at;
  const Manifest manifest = make_manifest(at.repository->id(), nullptr);
  for (const ErrorCode code :
       {ErrorCode::unavailable, ErrorCode::timed_out, ErrorCode::cancelled, ErrorCode::io}) {
    at.bucket->fail_call(1, code);
    EXPECT_THROW(at.repository->commit(manifest, {}), CommitUnknown) << to_string(code);
  }
  for (const ErrorCode code : {ErrorCode::permission, ErrorCode::no_space}) {
    at.bucket->fail_call(1, code);
    try {
      at.repository->commit(manifest, {});
      FAIL();
    } catch (const CommitUnknown&) {
      FAIL() << "a refusal is an answer";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
    }
  }
}

TEST(Repository, RefusesToCommitWhatNobodyCouldRead) {
  RepositoryFixture at;
  Manifest manifest = make_manifest(at.repository->id(), nullptr);
  manifest.snapshot.reset();
  EXPECT_EQ(code_of([&] { at.repository->commit(manifest, {}); }), ErrorCode::corrupt);
  EXPECT_FALSE(at.bucket->find(keys::manifest(1)));
}

TEST(Repository, RefusesAManifestOfAnotherNumberOrRepository) {
  RepositoryFixture at;
  const auto versions = commit_versions(*at.repository, 2);
  at.bucket->replace(keys::manifest(3), versions[1].manifest_bytes);
  std::string message;
  EXPECT_EQ(code_of([&] { at.repository->find_version(3, {}); }, &message), ErrorCode::corrupt);
  EXPECT_NE(message.find(keys::manifest(3)), std::string::npos) << message;
  EXPECT_NE(message.find("version 2"), std::string::npos) << message;

  const Manifest foreign = make_manifest(std::string(32, 'f'), nullptr);
  at.bucket->replace(keys::manifest(1), foreign.serialize());
  EXPECT_EQ(code_of([&] { at.repository->find_version(1, {}); }, &message), ErrorCode::corrupt);
  EXPECT_NE(message.find(std::string(32, 'f')), std::string::npos) << message;
}

TEST(Repository, RefusesEveryTruncatedManifest) {
  RepositoryFixture at;
  const std::string bytes = commit_versions(*at.repository, 1)[0].manifest_bytes;
  for (std::size_t size = 0; size < bytes.size(); size++) {
    at.bucket->replace(keys::manifest(1), bytes.substr(0, size));
    EXPECT_EQ(code_of([&] { at.repository->find_version(1, {}); }), ErrorCode::corrupt) << size;
  }
}

TEST(Repository, AnUnreachableManifestIsNotAbsent) {
  RepositoryFixture at;
  commit_versions(*at.repository, 1);
  at.bucket->fail_key("versions/", ErrorCode::unavailable);
  EXPECT_EQ(code_of([&] { at.repository->find_version(1, {}); }), ErrorCode::unavailable);
  EXPECT_EQ(code_of([&] { at.repository->newest_version(0, {}); }), ErrorCode::unavailable);
}

// ---- the newest version ----

TEST(Repository, FindsTheNewestVersion) {
  RepositoryFixture at;
  EXPECT_EQ(at.repository->newest_version(0, {}), 0u);
  commit_versions(*at.repository, 1);
  EXPECT_EQ(at.repository->newest_version(0, {}), 1u);
  commit_versions(*at.repository, 7);
  for (std::uint64_t known = 0; known <= 7; known++) {
    EXPECT_EQ(at.repository->newest_version(known, {}), 7u) << known;
  }
}

TEST(Repository, APollWithoutNewsIsOneGet) {
  RepositoryFixture at;
  commit_versions(*at.repository, 3);
  const std::uint64_t before = at.bucket->calls();
  EXPECT_EQ(at.repository->newest_version(3, {}), 3u);
  EXPECT_EQ(at.bucket->calls() - before, 1u);
}

TEST(Repository, ALongHistoryIsNotWalked) {
  RepositoryFixture at;
  commit_versions(*at.repository, 300);
  const std::uint64_t before = at.bucket->calls("get");
  EXPECT_EQ(at.repository->newest_version(0, {}), 300u);
  EXPECT_LT(at.bucket->calls("get") - before, 10u);
}

TEST(Repository, DoesNotNeedTheListToBeRight) {
  RepositoryFixture at;
  commit_versions(*at.repository, 9);
  at.bucket->hide_from_list("versions/");
  EXPECT_EQ(at.repository->newest_version(0, {}), 9u) << "the list shows nothing";
  at.bucket->heal();
  at.bucket->hide_from_list("versions/00000000000000000008");
  EXPECT_EQ(at.repository->newest_version(0, {}), 9u);
  at.bucket->heal();
  at.bucket->list_also(keys::manifest(5000));
  EXPECT_EQ(at.repository->newest_version(0, {}), 9u) << "the list names what is not there";
  at.bucket->heal();
  for (const char* key : {"versions/99999999999999999999.json", "versions/10.json", "versions/x",
                          "versions/0000000000000000001x.json", "versions/a/b"}) {
    at.bucket->replace(key, "junk");
  }
  EXPECT_EQ(at.repository->newest_version(0, {}), 9u) << "other names in versions/";
}

// ---- layouts, blobs, hashes, pack headers ----

TEST(Repository, KeepsLayouts) {
  RepositoryFixture at;
  const auto layout = make_opaque_layout({{"a.bin", 20u << 20}, {"sub/b.bin", 0}});
  const ObjectRef ref = at.repository->put_layout(*layout, {});
  EXPECT_EQ(ref.sha256, layout->id());
  EXPECT_EQ(at.repository->get_layout(ref, {})->id(), layout->id());
}

TEST(Repository, KeepsBlobs) {
  RepositoryFixture at;
  for (const std::string& text : {std::string("{}"), std::string(), std::string(1u << 20, 'x')}) {
    const BlobRef ref = at.repository->put_blob("config.json", text, {});
    EXPECT_EQ(ref.path, "config.json");
    EXPECT_EQ(ref.size_bytes, text.size());
    EXPECT_TRUE(at.repository->get_blob(ref, {}) == text);
  }
}

TEST(Repository, UploadsWhatIsThereOnlyOnce) {
  RepositoryFixture at;
  const BlobRef ref = at.repository->put_blob("a", "text", {});
  EXPECT_EQ(at.bucket->calls("put"), 1u);
  at.repository->put_blob("b", "text", {});
  EXPECT_EQ(at.bucket->calls("put"), 1u);

  // A damaged blob would make every version that names it unreadable.
  at.bucket->replace(keys::blob(ref.sha256), "rotten");
  at.repository->put_blob("a", "text", {});
  EXPECT_EQ(at.bucket->calls("put"), 2u);
  EXPECT_EQ(at.repository->get_blob(ref, {}), "text");
}

TEST(Repository, RefusesEveryDamageToABlob) {
  RepositoryFixture at;
  const BlobRef ref = at.repository->put_blob("a", "some text that is long enough", {});
  const std::string key = keys::blob(ref.sha256);
  const std::string good = at.bucket->find(key).value();
  const auto expect_corrupt = [&](std::string bytes) {
    at.bucket->replace(key, std::move(bytes));
    std::string message;
    EXPECT_EQ(code_of([&] { at.repository->get_blob(ref, {}); }, &message), ErrorCode::corrupt);
    EXPECT_NE(message.find(key), std::string::npos) << message;
  };
  for (std::size_t size = 0; size < good.size(); size++) expect_corrupt(good.substr(0, size));
  expect_corrupt(good + "x");
  expect_corrupt(compress("other text that has the length"));
  expect_corrupt(compress("some text that is long enougH"));
  expect_corrupt(std::string(100'000, 'x'));
  at.bucket->erase(key);
  EXPECT_EQ(code_of([&] { at.repository->get_blob(ref, {}); }), ErrorCode::not_found);
}

TEST(Repository, RefusesAManifestsLieAboutASize) {
  RepositoryFixture at;
  BlobRef blob = at.repository->put_blob("a", "text", {});
  blob.size_bytes = 5;
  EXPECT_EQ(code_of([&] { at.repository->get_blob(blob, {}); }), ErrorCode::corrupt);
  blob.size_bytes = std::uint64_t{1} << 60;
  EXPECT_EQ(code_of([&] { at.repository->get_blob(blob, {}); }), ErrorCode::corrupt);
  const auto layout = make_opaque_layout({{"a.bin", 1}});
  ObjectRef ref = at.repository->put_layout(*layout, {});
  ref.size_bytes = std::uint64_t{1} << 60;
  EXPECT_EQ(code_of([&] { at.repository->get_layout(ref, {}); }), ErrorCode::corrupt);
}

SnapshotHashes some_hashes(const Layout& layout) {
  SnapshotHashes hashes;
  for (std::uint64_t i = 0; i < layout.chunk_count(); i++) hashes.chunks.push_back(~i);
  for (const LayoutFile& file : layout.files()) {
    auto& pieces = hashes.pieces.emplace_back();
    for (std::uint64_t at = 0; at < file.size_bytes; at += kPieceBytes) {
      pieces.push_back(sha256(as_bytes(file.path + std::to_string(at))));
    }
  }
  return hashes;
}

TEST(Repository, KeepsTheHashesOfASnapshot) {
  RepositoryFixture at;
  const auto layout =
      make_opaque_layout({{"a.bin", (3u << 20) + 1}, {"b.bin", 0}, {"c.bin", 1u << 20}});
  const SnapshotHashes hashes = some_hashes(*layout);
  const ObjectRef ref = at.repository->put_snapshot_hashes(1, std::string(32, '0'), hashes, {});
  EXPECT_EQ(ref.size_bytes, 8 + 8 * layout->chunk_count() + 32 * 5);
  const SnapshotHashes found =
      at.repository->get_snapshot_hashes(1, {std::string(32, '0'), ref}, *layout, {});
  EXPECT_EQ(found.chunks, hashes.chunks);
  EXPECT_EQ(found.pieces, hashes.pieces);
}

TEST(Repository, RefusesHashesThatDoNotFitTheLayout) {
  RepositoryFixture at;
  const std::string nonce(32, '0');
  const auto layout = make_opaque_layout({{"a.bin", 3u << 20}});
  const auto other = make_opaque_layout({{"a.bin", 4u << 20}});
  const auto huge = make_opaque_layout({{"a.bin", std::uint64_t{1} << 45}});
  const ObjectRef ref = at.repository->put_snapshot_hashes(1, nonce, some_hashes(*layout), {});
  EXPECT_EQ(code_of([&] {
              at.repository->get_snapshot_hashes(1, {nonce, ref}, *other, {});
            }),
            ErrorCode::corrupt);
  EXPECT_EQ(code_of([&] {
              at.repository->get_snapshot_hashes(1, {nonce, ref}, *huge, {});
            }),
            ErrorCode::corrupt);

  std::string bytes(ref.size_bytes, 'x');
  const ObjectRef wrong{bytes.size(), sha256(as_bytes(bytes))};
  at.bucket->replace(keys::snapshot_hashes(1, nonce), compress(bytes));
  EXPECT_EQ(code_of([&] {
              at.repository->get_snapshot_hashes(1, {nonce, wrong}, *layout, {});
            }),
            ErrorCode::corrupt);
}

// A pack with one raw chunk; only its header matters here.
TEST(Repository, ChecksTheHeadOfAPack) {
  RepositoryFixture at;
  const auto layout = make_opaque_layout({{"a.bin", 100}});
  PackWriter writer(*layout);
  const std::uint32_t length = 101;
  const Bytes data(length, std::byte{1});
  writer.add(0, 0, {&length, 1}, 7, 100, data);
  const std::string head = writer.finish();
  const std::string name = std::string(32, '0') + "-0";
  const std::string key = keys::pack(2, name);
  const std::string good = head + std::string(as_text(data));
  at.bucket->replace(key, good);
  const PackRef ref{name, good.size(), head.size(), sha256(as_bytes(head))};
  EXPECT_EQ(
      at.repository->get_pack_index(keys::pack(2, ref.name), ref, *layout, {})->chunks().size(),
      1u);

  const auto expect_corrupt = [&](const PackRef& bad) {
    std::string message;
    EXPECT_EQ(
        code_of([&] { at.repository->get_pack_index(keys::pack(2, bad.name), bad, *layout, {}); },
                &message),
        ErrorCode::corrupt);
    EXPECT_NE(message.find(key), std::string::npos) << message;
  };
  PackRef bad = ref;
  bad.head_sha256[0] ^= std::byte{1};
  expect_corrupt(bad);
  bad = ref;
  bad.head_bytes = ref.size_bytes + 1;
  expect_corrupt(bad);
  bad = ref;
  bad.size_bytes = std::uint64_t{1} << 50;
  bad.head_bytes = std::uint64_t{1} << 49;
  expect_corrupt(bad);
  at.bucket->replace(key, good.substr(0, head.size() - 1));
  expect_corrupt(ref);
  at.bucket->erase(key);
  EXPECT_EQ(
      code_of([&] { at.repository->get_pack_index(keys::pack(2, ref.name), ref, *layout, {}); }),
      ErrorCode::not_found);
}

// ---- a bucket that becomes unreachable ----

TEST(Repository, AssumedItReadsNothingUntilItMust) {
  const TempDir directory;
  const std::string url = "file://" + (directory / "run").string();
  const auto repository = Repository::assume(url, kRepositoryId);
  EXPECT_EQ(repository->id(), kRepositoryId);
  EXPECT_EQ(repository->url(), url);
}

TEST(Repository, AssumedItWorksWhenTheBucketIsBack) {
  const TempDir directory;
  const std::string url = "file://" + (directory / "run").string();
  bool created = false;
  std::string id;
  {
    const auto real = Repository::init(url, created, {});
    commit_versions(*real, 2);
    id = real->id();
  }
  std::filesystem::rename(directory / "run", directory / "away");
  const auto repository = Repository::assume(url, id);
  std::string message;
  for (int round = 0; round < 2; round++) {
    EXPECT_EQ(code_of([&] { repository->newest_version(0, {}); }, &message),
              ErrorCode::unavailable);
    EXPECT_NE(message.find((directory / "run").string()), std::string::npos) << message;
  }
  std::filesystem::create_directory(directory / "run");
  EXPECT_EQ(code_of([&] { repository->newest_version(0, {}); }, &message), ErrorCode::unavailable)
      << "an empty mount point";
  std::filesystem::remove(directory / "run");
  std::filesystem::rename(directory / "away", directory / "run");
  EXPECT_EQ(repository->newest_version(0, {}), 2u);
}

TEST(Repository, AssumedItRefusesAnotherRepository) {
  const TempDir directory;
  bool created = false;
  const auto real = Repository::init(directory.path().string(), created, {});
  const auto repository = Repository::assume(directory.path().string(), kRepositoryId);
  std::string message;
  EXPECT_EQ(code_of([&] { repository->bucket({}); }, &message), ErrorCode::unavailable);
  EXPECT_NE(message.find(kRepositoryId), std::string::npos) << message;
  EXPECT_NE(message.find(real->id()), std::string::npos) << message;
}

TEST(Repository, AssumedItMayBeUsedByManyThreads) {
  const TempDir directory;
  bool created = false;
  const auto real = Repository::init(directory.path().string(), created, {});
  commit_versions(*real, 3);
  const auto repository = Repository::assume(directory.path().string(), real->id());
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; thread++) {
    threads.emplace_back([&] { EXPECT_EQ(repository->newest_version(0, {}), 3u); });
  }
}

TEST(Repository, OpenedItSaysWhenTheBucketIsGone) {
  const TempDir directory;
  const std::string url = "file://" + (directory / "run").string();
  bool created = false;
  const auto repository = Repository::init(url, created, {});
  commit_versions(*repository, 1);
  std::filesystem::rename(directory / "run", directory / "away");
  std::string message;
  EXPECT_EQ(code_of([&] { repository->newest_version(1, {}); }, &message), ErrorCode::unavailable);
  EXPECT_NE(message.find("is gone"), std::string::npos) << message;
  std::filesystem::rename(directory / "away", directory / "run");
  EXPECT_EQ(repository->newest_version(1, {}), 1u);
}

}  // namespace
}  // namespace weightfs
