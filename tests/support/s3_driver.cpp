// Operations that the tests of s3:// URLs repeat so often that a process for each would cost more
// than the work itself.  Credentials come from the environment; it prints one line for each
// operation.
//
//     weightfs_s3_driver seeds DIR THREADS     standard input: lines of ENDPOINT DIRECT URL.  For
//         each: makes a repository, publishes two versions of a small checkpoint, and reads both
//         with an empty store, all through ENDPOINT; then once more through DIRECT, where nothing
//         may fail.  Prints "ok URL", or "wrong URL" and why.
//     weightfs_s3_driver race ENDPOINT URL DIR NAME COUNT     publishes small checkpoints, retrying
//         each until it succeeds, as long as the repository has fewer than COUNT versions.  Prints
//         "won VERSION TAG" and "conflict TAG".
//     weightfs_s3_driver put ENDPOINT URL KEY FILE     writes an object.
//     weightfs_s3_driver get ENDPOINT URL KEY FILE     reads one in parallel, like the large files
//         of snapshots.
//     weightfs_s3_driver history ENDPOINT URL DIR COUNT     fills a repository with COUNT versions
//         of one checkpoint.
#include <fcntl.h>
#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <iostream>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "store/base/bytes.hpp"
#include "store/base/error.hpp"
#include "store/os/file.hpp"
#include "store/repository/open_bucket.hpp"
#include "tests/support/hosts.hpp"
#include "tests/support/support.hpp"

namespace weightfs::test {
namespace {

namespace stdfs = std::filesystem;

constexpr std::size_t kElements = 6'000;  // in a checkpoint of `seeds`
constexpr unsigned kTries = 5;            // for an operation that a fault may end

std::mutex output;

template <typename... Arguments>
void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  const std::scoped_lock lock(output);
  fmt::print(format, std::forward<Arguments>(arguments)...);
  std::fflush(stdout);
}

BucketOptions at(const std::string& endpoint) {
  BucketOptions options;
  options.endpoint_url = endpoint;
  return options;
}

Host open_host(const std::string& endpoint, const std::string& url, const stdfs::path& store) {
  return {Repository::open(url, {}, at(endpoint)), store};
}

// ---- seeds ----

/// Acts like a user who repeats a command when the bucket did not answer or the data was corrupt.
/// Any other error is a test failure.
template <typename Body>
void insist(Body&& body) {
  for (unsigned tries = 1;; tries++) {
    try {
      return body();
    } catch (const Error& error) {
      const bool may_pass = error.code() == ErrorCode::unavailable ||
                            error.code() == ErrorCode::timed_out ||
                            error.code() == ErrorCode::corrupt;
      if (!may_pass || tries == kTries) throw;
    }
  }
}

void make_repository(const std::string& endpoint, const std::string& url) {
  bool created = false;
  Repository::init(url, created, {}, at(endpoint));
}

void publish_all(const std::string& endpoint, const std::string& url, const stdfs::path& store,
                 const std::vector<stdfs::path>& checkpoints) {
  for (const stdfs::path& checkpoint : checkpoints) {
    PublishOptions options;
    options.directory = checkpoint;
    options.nonce = random_hex(16);  // a try that was reported as lost may have succeeded
    insist([&] { open_host(endpoint, url, store).publish(options); });
  }
}

void read_all(const std::string& endpoint, const std::string& url, const stdfs::path& store,
              const std::vector<stdfs::path>& checkpoints) {
  insist([&] {
    Host reader = open_host(endpoint, url, store);
    const std::uint64_t newest = reader.history.refresh(0, {});
    if (newest != checkpoints.size()) {
      throw std::runtime_error(fmt::format("{} versions, not {}", newest, checkpoints.size()));
    }
    for (std::uint64_t version = newest; version > 0; version--) {  // the newest is read by a delta
      if (reader.read_version(version) != read_tree(checkpoints[version - 1])) {
        throw std::runtime_error(fmt::format("version {} has other bytes", version));
      }
    }
  });
}

struct Job {
  std::string endpoint, direct, url;
};

void run(const Job& job, const std::vector<stdfs::path>& checkpoints) {
  try {
    const TempDir work;
    insist([&] { make_repository(job.endpoint, job.url); });
    publish_all(job.endpoint, job.url, work / "publisher", checkpoints);
    read_all(job.endpoint, job.url, work / "reader", checkpoints);
    read_all(job.direct, job.url, work / "again", checkpoints);
    print("ok {}\n", job.url);
  } catch (const std::exception& error) {
    print("wrong {} {}\n", job.url, error.what());
  }
}

int seeds(const stdfs::path& directory, unsigned thread_count) {
  std::vector<stdfs::path> checkpoints;
  for (unsigned version = 1; version <= 2; version++) {
    checkpoints.push_back(directory / fmt::format("checkpoint-{}", version));
    write_checkpoint(checkpoints.back(), version, kElements);
  }
  std::vector<Job> jobs;
  for (Job job; std::cin >> job.endpoint >> job.direct >> job.url;) jobs.push_back(job);
  std::atomic<std::size_t> next = 0;
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < thread_count; i++) {
    threads.emplace_back([&] {
      for (std::size_t job = next++; job < jobs.size(); job = next++) run(jobs[job], checkpoints);
    });
  }
  return 0;
}

// ---- race, history ----

/// A checkpoint with one tensor, filled with repetitions of a text.
void write_small(const stdfs::path& directory, const std::string& text) {
  Bytes data(4096);
  for (std::size_t i = 0; i < data.size(); i++) {
    data[i] = static_cast<std::byte>(text[i % text.size()]);
  }
  write_text(directory / "model.safetensors",
             make_safetensors({{"weight", Dtype::u8, {4096}, std::move(data)}}));
}

int race(const std::string& endpoint, const std::string& url, const stdfs::path& directory,
         const std::string& name, std::uint64_t count) {
  Host host = open_host(endpoint, url, directory / "store");
  std::uint64_t newest = host.history.refresh(0, {});
  for (unsigned number = 1; newest < count; number++) {
    const std::string tag = fmt::format("{}-{}", name, number);
    write_small(directory / tag, tag + ".");
    for (bool is_there = false; !is_there && newest < count;) {
      try {
        newest = host.publish(directory / tag, tag).version;
        is_there = true;
        print("won {} {}\n", newest, tag);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::conflict) throw;
        print("conflict {}\n", tag);
        newest = host.history.refresh(newest, {});
      }
    }
  }
  return 0;
}

int history(const std::string& endpoint, const std::string& url, const stdfs::path& directory,
            std::uint64_t count) {
  Host host = open_host(endpoint, url, directory / "store");
  write_small(directory / "checkpoint", "the same in all versions. ");
  host.publish(directory / "checkpoint");
  const std::uint64_t second = host.publish(directory / "checkpoint").version;
  Version version = *host.history.get(second, {});
  while (version.number() < count) {
    Manifest manifest = version.manifest;
    manifest.parent = version.number();
    manifest.version = version.number() + 1;
    manifest.parent_sha256 = version.manifest_sha256;
    manifest.nonce = random_hex(16);
    version = host.repository->commit(manifest, {});
  }
  return 0;
}

// ---- put, get ----

constexpr std::uint64_t kPieceBytes = 4u << 20;

void put_file(Bucket& bucket, const std::string& key, const stdfs::path& path) {
  const File file = File::open(path, O_RDONLY);
  bucket.put(key, FileSource(file.fd(), stdfs::file_size(path), path), {});
}

/// Reads pieces in order, with as many threads as the bucket supports, until one is short.
void get_to_file(Bucket& bucket, const std::string& key, const stdfs::path& path) {
  const File file = File::open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  std::atomic<std::uint64_t> next = 0;
  std::atomic<bool> is_over = false;
  std::vector<std::future<void>> threads;
  for (unsigned i = 0; i < std::max(1u, bucket.parallel_requests()); i++) {
    threads.push_back(std::async(std::launch::async, [&] {
      Bytes piece(kPieceBytes);
      while (!is_over) {
        const std::uint64_t at = kPieceBytes * next++;
        const std::size_t size = bucket.get(key, at, piece, {});
        if (size < piece.size()) is_over = true;
        write_at(file.fd(), at, std::span(piece).first(size), path);
      }
    }));
  }
  for (auto& thread : threads) thread.get();
}

}  // namespace
}  // namespace weightfs::test

int main(int count, char** arguments) {
  const std::vector<std::string> given(arguments + 1, arguments + count);
  const auto number = [&](std::size_t i) { return std::strtoul(given[i].c_str(), nullptr, 10); };
  try {
    using namespace weightfs::test;
    if (given.size() == 3 && given[0] == "seeds") {
      return seeds(given[1], static_cast<unsigned>(number(2)));
    }
    if (given.size() == 6 && given[0] == "race") {
      return race(given[1], given[2], given[3], given[4], number(5));
    }
    if (given.size() == 5 && (given[0] == "put" || given[0] == "get")) {
      const auto bucket = weightfs::open_bucket(given[2], false, at(given[1]));
      if (given[0] == "put") {
        put_file(*bucket, given[3], given[4]);
      } else {
        get_to_file(*bucket, given[3], given[4]);
      }
      return 0;
    }
    if (given.size() == 5 && given[0] == "history") {
      return history(given[1], given[2], given[3], number(4));
    }
    std::fputs("usage: see the head of s3_driver.cpp\n", stderr);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
