// FakeHub: a Hugging Face Hub with models' files, and the host that it redirects to, each on a port
// of its own.
//
// Files in large file storage are answered with a redirect to a signed URL of the other host; small
// ones by the Hub itself.  Whoever shows the other host an Authorization gets 400, and is counted.
// Faults are up to the test:
//
//     before(f)        f may answer instead of the Hub
//     before_link(f)   f may answer instead of the other host
//
// Threads: all calls may run in parallel.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "store/aws/config.hpp"
#include "tests/support/http_server.hpp"

namespace weightfs::test {

class FakeHub {
 public:
  using Before = std::function<std::optional<ServedReply>(const ServedRequest&)>;

  FakeHub();
  ~FakeHub();

  [[nodiscard]] std::string url() const;
  /// HF_ENDPOINT, few attempts, and the variables given.
  [[nodiscard]] Environment environment(
      std::map<std::string, std::string, std::less<>> more = {}) const;

  /// `key`: "org/model/resolve/COMMIT/path".
  void put(const std::string& key, std::string bytes, bool is_large = true);
  void remove(const std::string& key);

  void before(Before before);
  void before_link(Before before);

  /// Required of whoever asks; empty: none.
  void set_token(std::string token);
  /// Signed URLs that were given away so far answer 403.
  void expire_links() { signature_++; }
  /// Ranges are ignored from now on.
  std::atomic<bool> ignores_range{false};

  /// "HEAD /org/model/...", "GET /org/..." of the Hub, and "LINK /org/..." of the other host.
  [[nodiscard]] std::vector<std::string> requests() const;
  [[nodiscard]] std::size_t count(std::string_view part_of_request) const;
  [[nodiscard]] unsigned leaks() const noexcept { return leaks_; }

 private:
  struct Object {
    std::string bytes;
    bool is_large = true;
  };

  ServedReply answer(const ServedRequest& request);
  ServedReply answer_link(const ServedRequest& request);
  [[nodiscard]] ServedReply range_of(const ServedRequest& request, const std::string& bytes) const;
  [[nodiscard]] std::optional<Object> find(const std::string& path) const;
  std::optional<ServedReply> begin(const std::string& verb, const ServedRequest& request,
                                   const Before FakeHub::*before);

  mutable std::mutex mutex_;  // guards what follows
  std::map<std::string, Object> objects_;
  std::vector<std::string> requests_;
  std::string token_;
  Before before_, before_link_;

  std::atomic<unsigned> leaks_{0}, signature_{0};
  std::unique_ptr<HttpServer> links_, hub_;  // last: their threads use what is above
};

}  // namespace weightfs::test
