// Publish: several publishers, fences, nonces, and uploads that are of no use.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "store/base/error.hpp"
#include "store/publish/publish.hpp"
#include "store/publish/upload_names.hpp"
#include "tests/store/publish/publish_fixture.hpp"
#include "tests/support/hosts.hpp"

namespace weightfs::test {
namespace {

// ---- races ----

TEST_F(PublishTest, LosesToAPublisherThatWasFasterAndWorksTheNextTime) {
  publisher().publish(checkpoint(1));
  Host other = fresh_host();
  PublishOptions options = options_of(checkpoint(2));
  options.at = [&](std::string_view point) {
    if (point == "before-commit") other.publish(checkpoint(3));
  };
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::conflict);
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(checkpoint(3)));

  options.at = {};
  const PublishResult result = publisher().publish(options);
  EXPECT_EQ(result.version, 3u);
  EXPECT_EQ(read_on_a_fresh_host(3), read_tree(checkpoint(2)));
  expect_sound();
}

TEST_F(PublishTest, LosesTheFirstVersionTooToAFasterPublisher) {
  Host other = fresh_host();
  PublishOptions options = options_of(checkpoint(1));
  options.at = [&](std::string_view point) {
    if (point == "before-commit") other.publish(checkpoint(2));
  };
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::conflict);
  EXPECT_EQ(read_on_a_fresh_host(1), read_tree(checkpoint(2)));
}

// Nothing that has no version yet says of which repository the bucket is.
TEST_F(PublishTest, PublishesNoFirstVersionIntoABucketThatWasEmptiedOrBegunAnew) {
  Host& host = publisher();
  const std::string record = bucket_->find(keys::kRecord).value();
  bucket_->erase(keys::kRecord);
  EXPECT_EQ(error_of([&] { host.publish(checkpoint(1)); }).code(), ErrorCode::not_found);
  bucket_->replace(keys::kRecord, record_of_another(record, host.repository->id()));
  const Error error = error_of([&] { host.publish(checkpoint(1)); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_NE(std::string(error.what()).find("another repository"), std::string::npos);
  EXPECT_FALSE(bucket_->find(keys::manifest(1)));
  bucket_->replace(keys::kRecord, record);
  EXPECT_EQ(host.publish(checkpoint(1)).version, 1u);
}

TEST_F(PublishTest, GivesOneNumberToOneOfManyPublishersAtOnce) {
  constexpr int kPublishers = 6;
  publisher().publish(checkpoint(1));
  std::vector<std::unique_ptr<Host>> hosts;
  for (int i = 0; i < kPublishers; i++) {
    hosts.push_back(std::make_unique<Host>(bucket_, dir_ / ("racer-" + std::to_string(i))));
  }
  const auto directory = checkpoint(2);
  std::atomic<int> won{0}, lost{0};
  {
    std::vector<std::jthread> threads;
    for (auto& host : hosts) {
      threads.emplace_back([&won, &lost, &directory, racer = host.get()] {
        try {
          racer->publish(directory);
          won++;
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::conflict) << error.what();
          lost++;
        }
      });
    }
  }
  EXPECT_GE(won, 1);
  EXPECT_EQ(won + lost, kPublishers);
  Host reader = fresh_host();
  EXPECT_EQ(reader.history.refresh(0, {}), static_cast<std::uint64_t>(1 + won));
  expect_sound();
}

TEST_F(PublishTest, TakesALostReplyToTheCommitForWhatItWas) {
  publisher().publish(checkpoint(1));
  PublishOptions options = options_of(checkpoint(2));
  options.at = [&](std::string_view point) {
    if (point == "before-commit") bucket_->lose_reply("versions/");
  };
  EXPECT_EQ(publisher().publish(options).version, 2u);
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(checkpoint(2)));
}

/// Calls `rival` each time a publish is about to commit, `times` times.
std::function<void(std::string_view)> outrun(unsigned times, std::function<void()> rival) {
  return [left = times, rival = std::move(rival)](std::string_view point) mutable {
    if (point != "before-commit" || left == 0) return;
    left--;
    rival();
  };
}

TEST_F(PublishTest, CodesAgainOnTopOfTheWinnerWithRebase) {
  publisher().publish(checkpoint(1));
  Host other = fresh_host();
  unsigned rival = 3;
  std::vector<std::uint64_t> committing;
  PublishOptions options = options_of(checkpoint(2));
  options.wishes.rebase = true;
  options.committing = [&](std::uint64_t version) { committing.push_back(version); };
  options.at = outrun(2, [&] { other.publish(checkpoint(rival++)); });
  const PublishResult result = publisher().publish(options);
  EXPECT_EQ(result.version, 4u);
  EXPECT_EQ(result.parent, 3u);
  EXPECT_EQ(committing, (std::vector<std::uint64_t>{2, 3, 4}));
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(checkpoint(3)));
  EXPECT_EQ(read_on_a_fresh_host(3), read_tree(checkpoint(4)));
  EXPECT_EQ(read_on_a_fresh_host(4), read_tree(checkpoint(2)));
  expect_sound();
}

TEST_F(PublishTest, RebasesAFirstVersionThatCameSecond) {
  Host other = fresh_host();
  PublishOptions options = options_of(checkpoint(1));
  options.wishes.rebase = true;
  options.at = outrun(1, [&] { other.publish(checkpoint(2)); });
  const PublishResult result = publisher().publish(options);
  EXPECT_EQ(result.version, 2u);
  EXPECT_FALSE(result.snapshot);
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(checkpoint(1)));
  expect_sound();
}

/// It was scanned when the parent had none either.
TEST_F(PublishTest, AVersionWithoutWeightsIsNotRebasedOntoOneThatHasSome) {
  Host other = fresh_host();
  PublishOptions options = options_of(directory_of({{"config.json", "{}"}, {"x.py", "code"}}));
  options.wishes.rebase = true;
  options.at = outrun(1, [&] { other.publish(checkpoint(1)); });
  const Error error = error_of([&] { publisher().publish(options); });
  EXPECT_EQ(error.code(), ErrorCode::invalid);
  EXPECT_NE(std::string(error.what()).find("version 1 has some; left out were x.py"),
            std::string::npos)
      << error.what();
  EXPECT_FALSE(bucket_->find(keys::manifest(2)));
  expect_sound();
}

TEST_F(PublishTest, GivesUpARebaseThatAlwaysLoses) {
  publisher().publish(checkpoint(1, 2'000));
  Host other = fresh_host();
  unsigned tries = 0;
  PublishOptions options = options_of(checkpoint(2, 2'000));
  options.wishes.rebase = true;
  options.committing = [&](std::uint64_t) { tries++; };
  options.at = outrun(100, [&] { other.publish(checkpoint(3, 2'000)); });
  const Error error = error_of([&] { publisher().publish(options); });
  EXPECT_EQ(error.code(), ErrorCode::conflict);
  EXPECT_EQ(tries, kRebaseTries);
  EXPECT_NE(std::string(error.what()).find("10 tries"), std::string::npos) << error.what();
  EXPECT_EQ(publisher().history.refresh(0, {}), 1 + kRebaseTries);
}

TEST_F(PublishTest, StopsOnRequestBetweenTheTriesOfARebase) {
  publisher().publish(checkpoint(1));
  Host other = fresh_host();
  std::stop_source source;
  PublishOptions options = options_of(checkpoint(2));
  options.wishes.rebase = true;
  options.at = outrun(1, [&] {
    other.publish(checkpoint(3));
    source.request_stop();
  });
  const Context context{source.get_token(), Clock::time_point::max()};
  EXPECT_EQ(error_of([&] { publisher().publish(options, context); }).code(), ErrorCode::cancelled);
  EXPECT_FALSE(bucket_->find(keys::manifest(3)));
}

// ---- fences and hand-overs ----

TEST_F(PublishTest, RefusesAFenceThatDoesNotHoldBeforeAnythingIsRead) {
  publisher().publish(checkpoint(1));
  publisher().publish(checkpoint(2));
  const std::size_t objects = bucket_->objects().size();
  PublishOptions options = options_of(dir_ / "there is no such directory");
  options.fence_parent = 1;
  const Error error = error_of([&] { publisher().publish(options); });
  EXPECT_EQ(error.code(), ErrorCode::conflict);
  EXPECT_NE(std::string(error.what()).find("newest version is 2"), std::string::npos)
      << error.what();
  EXPECT_NE(std::string(error.what()).find("version 1"), std::string::npos) << error.what();
  EXPECT_EQ(bucket_->objects().size(), objects);
}

/// The fence is taken for the newest version until the bucket says otherwise.
TEST_F(PublishTest, IsAConflictThoughItHadBegunToCodeAgainstTheFence) {
  publisher().publish(checkpoint(1));
  Host other = fresh_host();
  other.publish(checkpoint(3));
  PublishOptions options = options_of(checkpoint(2));
  options.fence_parent = 1;
  EXPECT_EQ(publisher().store->manifests().newest().version, 1u);
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::conflict);
  EXPECT_EQ(publisher().store->manifests().newest().version, 2u);
  EXPECT_FALSE(bucket_->find(keys::manifest(3)));
  EXPECT_EQ(keys_below(*bucket_, "packs/2/").size(), 1u) << "the winner's";
  expect_sound();
}

TEST_F(PublishTest, PublishesBehindAFenceThatHolds) {
  PublishOptions options = options_of(checkpoint(1));
  options.fence_parent = 0;
  EXPECT_EQ(publisher().publish(options).version, 1u);
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::conflict);
  options.fence_parent = 1;
  EXPECT_EQ(publisher().publish(options).version, 2u);
}

TEST_F(PublishTest, TakesTheNewestVersionInsteadOfTheFenceWithRebase) {
  publisher().publish(checkpoint(1));
  publisher().publish(checkpoint(2));
  PublishOptions options = options_of(checkpoint(3));
  options.fence_parent = 1;
  options.wishes.rebase = true;
  EXPECT_EQ(publisher().publish(options).parent, 2u);
  EXPECT_EQ(read_on_a_fresh_host(3), read_tree(checkpoint(3)));
}

TEST_F(PublishTest, CommitsNothingIfTheHookThatIsAskedRefuses) {
  publisher().publish(checkpoint(1));
  PublishOptions options = options_of(checkpoint(2));
  options.lock_images = true;
  options.committing = [](std::uint64_t) {
    throw Error(ErrorCode::cancelled, "it was taken back");
  };
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::cancelled);
  EXPECT_FALSE(bucket_->find(keys::manifest(2)));
  EXPECT_TRUE(publisher().store->images().lock_images(Context{}.within(std::chrono::seconds(60))));
}

TEST_F(PublishTest, HandsOutTheLockOfTheImagesThatItTookBeforeTheCommit) {
  publisher().publish(checkpoint(1));
  Host other = fresh_host();
  const auto is_locked = [&] {
    return error_of([&] {
             static_cast<void>(publisher().store->images().lock_images(Context{}.within({})));
           }).code() == ErrorCode::timed_out;
  };
  unsigned locked = 0;
  PublishOptions options = options_of(checkpoint(2));
  options.lock_images = true;
  options.wishes.rebase = true;  // the parent is brought in again, which needs the lock
  options.committing = [&](std::uint64_t) { locked += is_locked() ? 1 : 0; };
  options.at = outrun(1, [&] { other.publish(checkpoint(3)); });
  PublishResult result = publisher().publish(options);
  EXPECT_EQ(result.version, 3u);
  EXPECT_EQ(locked, 2u);
  EXPECT_TRUE(result.images_lock);
  EXPECT_TRUE(is_locked());
  result.images_lock.unlock();
  EXPECT_FALSE(is_locked());
}

constexpr std::string_view kNonce = "00112233445566778899aabbccddeeff";

TEST_F(PublishTest, CarriesTheNonceThatItWasGivenSoThatItIsFoundAgain) {
  publisher().publish(checkpoint(1));
  PublishOptions options = options_of(checkpoint(2));
  options.nonce = kNonce;
  publisher().publish(options);
  publisher().publish(checkpoint(3));
  Host other = fresh_host();
  EXPECT_EQ(find_nonce(other.history, 0, kNonce, {}), 2u);
  EXPECT_EQ(find_nonce(other.history, 1, kNonce, {}), 2u);
  EXPECT_EQ(find_nonce(other.history, 2, kNonce, {}), std::nullopt);
  EXPECT_EQ(find_nonce(other.history, 0, std::string(32, '0'), {}), std::nullopt);
  options.nonce = "short";
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::invalid);
}

TEST_F(PublishTest, SaysThatTheOutcomeOfACommitIsUnknownWhereTheBucketFallsSilent) {
  publisher().publish(checkpoint(1));
  for (const bool is_written : {false, true}) {
    PublishOptions options = options_of(checkpoint(2));
    options.nonce = kNonce;
    options.lock_images = true;
    options.committing = [&](std::uint64_t) {
      if (is_written) bucket_->lose_reply("versions/");
      if (is_written) bucket_->fail_call(2, ErrorCode::unavailable);  // the read-back
      if (!is_written) bucket_->fail_key("versions/", ErrorCode::unavailable);
    };
    try {
      publisher().publish(options);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommitUnknown& error) {
      EXPECT_EQ(error.code(), ErrorCode::unavailable);
      EXPECT_EQ(error.version(), 2u);
    }
    bucket_->heal();
    EXPECT_EQ(find_nonce(publisher().history, 1, kNonce, {}).has_value(), is_written);
  }
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(checkpoint(2)));
}

TEST_F(PublishTest, KnowsThatACommitFailedWhereTheBucketSaysSo) {
  publisher().publish(checkpoint(1));
  PublishOptions options = options_of(checkpoint(2));
  options.committing = [&](std::uint64_t) { bucket_->fail_call(1, ErrorCode::permission); };
  try {
    publisher().publish(options);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const CommitUnknown& error) {
    ADD_FAILURE() << error.what();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::permission);
  }
  EXPECT_FALSE(bucket_->find(keys::manifest(2)));
}

TEST_F(PublishTest, TakesAnEarlierTryOfItsOwnThatWasCommittedForItself) {
  publisher().publish(checkpoint(1));
  PublishOptions options = options_of(checkpoint(2));
  options.nonce = kNonce;
  options.wishes.tag = "later";
  options.at = outrun(1, [&] {
    Host earlier = fresh_host();
    PublishOptions same = options_of(checkpoint(2));
    same.nonce = kNonce;
    same.wishes.tag = "earlier";
    earlier.publish(same);
  });
  const PublishResult result = publisher().publish(options);
  EXPECT_EQ(result.version, 2u);
  EXPECT_EQ(publisher().history.get(2, {})->manifest.tag, "earlier");
  EXPECT_EQ(publisher().store->manifests().find_manifest(2), bucket_->find(keys::manifest(2)));
  EXPECT_EQ(publisher().publish(checkpoint(3)).version, 3u);
  expect_sound();
}

/// Which the options said then, not now.
TEST_F(PublishTest, TellsOfAnEarlierTryOfItsOwnWhetherThatHasASnapshot) {
  publisher().publish(checkpoint(1));
  PublishOptions options = options_of(checkpoint(2));
  options.nonce = kNonce;
  options.wishes.snapshot = true;
  options.at = outrun(1, [&] {
    Host earlier = fresh_host();
    PublishOptions same = options_of(dir_ / "checkpoint-2");
    same.nonce = kNonce;
    earlier.publish(same);
  });
  const PublishResult result = publisher().publish(options);
  EXPECT_EQ(result.version, 2u);
  EXPECT_TRUE(result.delta && !result.snapshot && !result.base);
  EXPECT_EQ(result.images.version, 2u);
  expect_sound();
}

TEST_F(PublishTest, HasNoImagesOfAnEarlierTryOfItsOwnThatHadOtherFiles) {
  publisher().publish(checkpoint(1));
  PublishOptions options = options_of(checkpoint(2));
  options.nonce = kNonce;
  options.keeps_images = true;
  options.at = outrun(1, [&] {
    Host earlier = fresh_host();
    PublishOptions other = options_of(checkpoint(3));
    other.nonce = kNonce;
    earlier.publish(other);
  });
  const PublishResult result = publisher().publish(options);
  EXPECT_EQ(result.version, 2u);
  EXPECT_EQ(result.images.version, 0u);
  EXPECT_FALSE(result.fresh);
  EXPECT_FALSE(publisher().store->images().is_complete(2));
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(checkpoint(3)));
}

/// Later publishes would remove what the manifest names.
TEST_F(PublishTest, SendsNoManifestWhereTheNamesOfUploadsCannotBeChanged) {
  std::atomic<std::uint64_t> free{std::uint64_t{1} << 40};
  Host host(Repository::open(std::make_unique<BucketView>(bucket_), {}), dir_ / "full", kNoFloor,
            [&] {
              return Space{free, std::uint64_t{1} << 40};
            });
  PublishOptions options = options_of(checkpoint(1));
  options.at = [&](std::string_view point) {
    if (point == "before-commit") free = 0;
  };
  EXPECT_EQ(error_of([&] { host.publish(options); }).code(), ErrorCode::no_space);
  EXPECT_FALSE(bucket_->find(keys::manifest(1)));
}

// So that a bucket can resume an upload that a crash interrupted.
TEST_F(PublishTest, UploadsUnderTheSameNamesAgainAfterItFailed) {
  const auto uploads = [&] {
    auto objects = bucket_->objects();
    std::erase_if(objects, [](const auto& object) {
      return !object.first.starts_with("packs/") && !object.first.starts_with("snapshots/");
    });
    return objects;
  };
  const auto publish_in_vain = [&](Host& host, const stdfs::path& directory) {
    PublishOptions options = options_of(directory);
    options.keeps_uploads = true;
    options.committing = [](std::uint64_t) { throw Error(ErrorCode::cancelled, "stopped"); };
    EXPECT_THROW(host.publish(options), Error);
    return uploads();
  };
  for (const unsigned version : {1u, 2u}) {
    const auto first = publish_in_vain(publisher(), checkpoint(version));
    EXPECT_EQ(publish_in_vain(publisher(), checkpoint(version)), first);
    publisher().publish(checkpoint(version));
    EXPECT_EQ(uploads(), first);
  }
  expect_sound();
}

// Two simultaneous publishers of one checkpoint: one could replace what the other has committed by
// bytes that were changed while it read them.
TEST_F(PublishTest, TwoStoresNeverUploadUnderTheSameName) {
  Host other = fresh_host();
  PublishOptions options = options_of(checkpoint(1));
  options.keeps_uploads = true;
  options.committing = [](std::uint64_t) { throw Error(ErrorCode::cancelled, "stopped"); };
  EXPECT_THROW(publisher().publish(options), Error);
  const std::size_t count = keys_below(*bucket_, "snapshots/1/").size();
  EXPECT_THROW(other.publish(options), Error);
  EXPECT_EQ(keys_below(*bucket_, "snapshots/1/").size(), 2 * count);
}

TEST_F(PublishTest, OtherBytesHaveOtherNames) {
  publisher().publish(checkpoint(1));
  PublishOptions options = options_of(checkpoint(2));
  options.nonce = kNonce;
  options.keeps_uploads = true;
  options.committing = [](std::uint64_t) { throw Error(ErrorCode::cancelled, "stopped"); };
  EXPECT_THROW(publisher().publish(options), Error);
  options.directory = checkpoint(3);
  EXPECT_THROW(publisher().publish(options), Error);
  EXPECT_EQ(keys_below(*bucket_, "packs/2/").size(), 2u);
}

// ---- useless uploads ----

/// Objects that a failed publish may have left.
class UploadedInVain : public PublishTest {
 protected:
  std::vector<std::string> left() {
    std::vector<std::string> keys = keys_below(*bucket_, "packs/2/");
    for (std::string& key : keys_below(*bucket_, "snapshots/2/")) keys.push_back(std::move(key));
    return keys;
  }

  /// Of version 2, with a delta and a snapshot.
  PublishOptions second() {
    PublishOptions options = options_of(checkpoint(2));
    options.wishes.snapshot = true;
    return options;
  }
};

TEST_F(UploadedInVain, IsRemovedWhenItIsStopped) {
  publisher().publish(checkpoint(1));
  for (const std::string when : {"pack", "blobs", "layout"}) {
    std::stop_source source;
    PublishOptions options = second();
    options.at = [&](std::string_view point) {
      if (point != when) return;
      EXPECT_GE(left().size(), 4u);
      source.request_stop();
    };
    const Context context{source.get_token(), Clock::time_point::max()};
    EXPECT_EQ(error_of([&] { publisher().publish(options, context); }).code(),
              ErrorCode::cancelled);
    EXPECT_EQ(left(), std::vector<std::string>{}) << when;
  }
  EXPECT_EQ(publisher().publish(second()).version, 2u);
  expect_sound();
}

TEST_F(UploadedInVain, IsRemovedWhenAnotherWriterWasFaster) {
  publisher().publish(checkpoint(1));
  Host other = fresh_host();
  PublishOptions options = second();
  options.at = [&](std::string_view point) {
    if (point == "before-commit") other.publish(checkpoint(3));
  };
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::conflict);
  EXPECT_EQ(left().size(), 1u) << "the winner's pack";
  expect_sound();
}

// Two hosts began with a copy of one store, as of an image of a machine, and publish the same
// files.
TEST_F(UploadedInVain, IsNotRemovedWhereTheWinnerNamesIt) {
  publisher().publish(checkpoint(1));
  Host other = fresh_host();
  set_uploader(*other.store, uploader_of(*publisher().store), Durability::process);
  PublishOptions options = second();
  options.at = [&](std::string_view point) {
    if (point == "before-commit") other.publish(second());
  };
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::conflict);
  expect_sound();
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(checkpoint(2)));
}

// As in another virtual machine that was made of an image of the first.
TEST_F(UploadedInVain, ACopyOfAStoreUploadsUnderOtherNames) {
  publisher().publish(checkpoint(1));
  const std::string uploader = uploader_of(*publisher().store);
  EXPECT_EQ(uploader_of(*publisher().store), uploader);
  const std::string record = publisher().store->db().find(ColumnFamily::store, "uploader").value();
  Host copy = fresh_host();
  copy.store->db().write({{ColumnFamily::store, "uploader", record}});
  const std::string of_copy = uploader_of(*copy.store);
  EXPECT_EQ(of_copy.size(), uploader.size());
  EXPECT_NE(of_copy, uploader);
  EXPECT_EQ(uploader_of(*copy.store), of_copy);

  // The one that fails removes what it uploaded, and not what the other is about to name.
  PublishOptions options = second();
  options.at = [&](std::string_view point) {
    if (point != "before-commit") return;
    PublishOptions given_up = second();
    given_up.committing = [](std::uint64_t) { throw Error(ErrorCode::cancelled, "stopped"); };
    EXPECT_EQ(error_of([&] { copy.publish(given_up); }).code(), ErrorCode::cancelled);
  };
  EXPECT_EQ(publisher().publish(options).version, 2u);
  expect_sound();
  EXPECT_EQ(read_on_a_fresh_host(2), read_tree(checkpoint(2)));
}

// Those of its uploads a copy of it may have too.
TEST_F(UploadedInVain, AStoreOfAnOlderReleaseKeepsTheDigitsOfItsSkips) {
  publisher().publish(checkpoint(1));
  Store& store = *publisher().store;
  const std::string digits = random_hex(16);
  for (const char* record : {"uploader", "skip_uploader"}) {
    store.db().write({{ColumnFamily::store, record, digits}});
  }
  const std::string own = uploader_of(store);
  EXPECT_NE(own, digits);
  for (int times = 0; times < 2; times++) {
    EXPECT_EQ(uploader_of(store), own);
    EXPECT_EQ(skip_uploader_of(store), digits);
  }
  // From then on the record says where the store is.
  Host copy = fresh_host();
  const std::string record = store.db().find(ColumnFamily::store, "uploader").value();
  copy.store->db().write({{ColumnFamily::store, "uploader", record}});
  EXPECT_NE(uploader_of(*copy.store), own);
}

// The manifest may arrive long after the publisher gave up, and then also after the next one gave
// up.
TEST_F(UploadedInVain, StaysWhereAManifestMayYetArriveThatNamesIt) {
  publisher().publish(checkpoint(1));
  PublishOptions options = second();
  options.committing = [&](std::uint64_t) {
    bucket_->fail_key("versions/", ErrorCode::unavailable);
  };
  EXPECT_THROW(publisher().publish(options), CommitUnknown);
  bucket_->heal();
  const std::vector<std::string> uploaded = left();
  EXPECT_GE(uploaded.size(), 4u);

  options.committing = [](std::uint64_t) { throw Error(ErrorCode::cancelled, "stopped"); };
  EXPECT_EQ(error_of([&] { publisher().publish(options); }).code(), ErrorCode::cancelled);
  EXPECT_EQ(left(), uploaded) << "the same bytes again, from the same store: under other names";
}

}  // namespace
}  // namespace weightfs::test
