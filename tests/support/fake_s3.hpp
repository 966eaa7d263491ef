// FakeS3: a service that speaks the S3 protocol, based on HttpServer.
//
// It checks every signature, by signing the received request itself, and every hash of a body.  It
// stores objects, supports multipart uploads and lists keys.  Faults are up to the test:
//
//     before(f)   f may answer instead of the service (a fault before the request is carried out)
//     after(f)    f may change the answer to a request that was carried out (a lost reply, a wrong
//                 range)
//
// Both are called for every request.
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

  /// Opens s3://bucket/PREFIX at this service, with keys that it accepts.
  [[nodiscard]] std::unique_ptr<Bucket> open(std::string_view prefix) const;
  [[nodiscard]] Environment environment() const;
  [[nodiscard]] std::string url() const;

  void before(Before before);
  void after(After after);

  // Its behaviour and settings.  Set them before the first request.
  std::atomic<bool> ignores_if_none_match{false};
  std::atomic<bool> ignores_range{false};
  std::atomic<int> clock_ahead_s{0};  // relative to this machine's clock
  std::string session_token;          // required with the keys; empty: none

  [[nodiscard]] std::map<std::string, std::string> objects() const;
  void plant(const std::string& key, std::string bytes);
  void erase(const std::string& key);
  [[nodiscard]] std::size_t uploads() const;  // neither completed nor aborted
  void age_uploads(std::chrono::hours by);

  /// "GET /bucket/key", "POST /bucket/key?uploads": all requests, in order.
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

  mutable std::mutex mutex_;  // guards the fields below, except the server
  std::map<std::string, std::string> objects_;
  std::map<std::string, std::chrono::system_clock::time_point> written_;
  std::map<std::string, Upload> uploads_;
  unsigned upload_count_ = 0;
  std::vector<std::string> requests_;
  Before before_;
  After after_;
  std::unique_ptr<HttpServer> server_;
};

/// An <Error> with a status, in S3's format.
ServedReply s3_error_reply(int status, std::string_view code, std::string_view message = "no");

}  // namespace weightfs::test
