// FakeS3: a service that speaks the S3 protocol, over HttpServer.
//
// It checks every signature, by signing what came over the wire itself, and every hash of a body;
// it keeps objects, does uploads in parts and lists.  What a good service does not do, a test
// writes:
//
//     before(f)   f may answer in the service's place (a fault before the request is carried out)
//     after(f)    f may change the answer of what was carried out (a lost reply, a wrong range)
//
// Both are given every request; `nth` below makes one that acts once.
//
// Threads: all calls may run in parallel.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/aws/config.hpp"
#include "store/aws/sigv4.hpp"
#include "store/bucket/bucket.hpp"
#include "tests/support/http_server.hpp"

namespace weightfs::test {

class FakeS3 {
 public:
  using Before = std::function<std::optional<ServedReply>(const ServedRequest&)>;
  using After = std::function<void(const ServedRequest&, ServedReply&)>;

  FakeS3();
  ~FakeS3();

  /// Opens s3://bucket/PREFIX there, with keys that it knows.
  [[nodiscard]] std::unique_ptr<Bucket> open(std::string_view prefix) const;
  [[nodiscard]] Environment environment() const;
  [[nodiscard]] std::string url() const;

  void before(Before before);
  void after(After after);

  // What it is like, and what it knows.  To be set before it is asked.
  std::atomic<bool> ignores_if_none_match{false};
  std::atomic<bool> ignores_range{false};
  std::atomic<int> clock_ahead_s{0};  // of this machine's
  std::string session_token;          // that keys must come with; empty: none

  [[nodiscard]] std::map<std::string, std::string> objects() const;
  void plant(const std::string& key, std::string bytes);
  void erase(const std::string& key);
  [[nodiscard]] std::size_t uploads() const;  // that are neither completed nor aborted
  void age_uploads(std::chrono::hours by);

  /// "GET /bucket/key", "POST /bucket/key?uploads": of each request, in their order.
  [[nodiscard]] std::vector<std::string> requests() const;
  [[nodiscard]] std::size_t count(std::string_view part_of_request) const;
  void forget_requests();

 private:
  struct Upload {
    std::string key;
    std::chrono::system_clock::time_point initiated;
    std::map<unsigned, std::string> parts;
  };

  ServedReply answer(const ServedRequest& request);
  ServedReply carry_out(const ServedRequest& request);
  [[nodiscard]] std::optional<ServedReply> refuse(const ServedRequest& request) const;
  ServedReply answer_for_bucket(const ServedRequest& request);
  ServedReply answer_for_upload(const ServedRequest& request, const std::string& key);
  ServedReply answer_for_object(const ServedRequest& request, const std::string& key);
  ServedReply complete(const std::string& id, const ServedRequest& request);
  ServedReply put(const ServedRequest& request, const std::string& key);
  [[nodiscard]] ServedReply get(const ServedRequest& request, const std::string& key) const;
  [[nodiscard]] ServedReply list(const ServedRequest& request) const;
  [[nodiscard]] ServedReply list_uploads(const ServedRequest& request) const;
  [[nodiscard]] ServedReply list_parts(const std::string& id) const;

  mutable std::mutex mutex_;  // guards what follows, but the server
  std::map<std::string, std::string> objects_;
  std::map<std::string, Upload> uploads_;
  unsigned upload_count_ = 0;
  std::vector<std::string> requests_;
  Before before_;
  After after_;
  std::unique_ptr<HttpServer> server_;
};

/// <Error> with a status, as S3 answers it.
ServedReply s3_error_reply(int status, std::string_view code, std::string_view message = "no");

}  // namespace weightfs::test
