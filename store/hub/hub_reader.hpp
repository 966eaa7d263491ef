// HubReader: files of models on the Hugging Face Hub, by ranges, at pinned commits.
//
//   * A key is "ORG/MODEL/resolve/COMMIT/path" (HubBase::key()): what follows the endpoint in a
//   URL.
//   * The Hub answers with a redirect to its CDN.  Redirects are followed by hand, https only
//   unless
//     the endpoint is http, kRedirectsMax at most; where one leads is kept for the file's next
//     ranges, until it is refused there.
//   * The token goes to the endpoint's scheme, host and port alone, whatever redirects say.  One
//     that is refused is looked up again, once for each request: it may have been renewed.
//   * Status, Content-Range and length are checked; the bytes are not: who asks has their hashes.
//   * Transport errors, 408, 429 and 5xx are tried again as for a bucket
//   (store/http/retry_loop.hpp).
//
// Errors: not_found (no such model, commit or file), permission (the token), unavailable,
// timed_out, cancelled.  Every message names the endpoint and the key.
//
// Threads: all calls may run in parallel.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/ranked_mutex.hpp"
#include "store/base/sha256.hpp"
#include "store/bucket/bucket.hpp"
#include "store/http/client.hpp"
#include "store/http/redirects.hpp"
#include "store/http/retry_loop.hpp"
#include "store/hub/hub_settings.hpp"

namespace weightfs {

/// What the Hub says of a file.
struct HubFile {
  std::optional<std::uint64_t> size_bytes;
  std::optional<Sha256> sha256;  // only of files in large file storage
};

class HubReader final : public BucketReader {
 public:
  /// Asks nothing of the network.
  HubReader(HubSettings settings, Environment environment);

  std::size_t get(std::string_view key, std::uint64_t offset_bytes, std::span<std::byte> into,
                  const Context& context) override;
  /// Asks for the headers of a file alone, and not where the Hub redirects to.
  HubFile describe(std::string_view key, const Context& context);

  [[nodiscard]] unsigned parallel_requests() const noexcept override;
  [[nodiscard]] const std::string& url() const noexcept override { return settings_.endpoint; }
  [[nodiscard]] std::string_view remedy() const noexcept override;

  /// Of files, so far.
  [[nodiscard]] std::uint64_t fetched_bytes() const noexcept { return fetched_bytes_; }

 private:
  /// One request.  The caller owns what it refers to until send() returns.
  struct Call {
    std::string_view key;
    std::string method = "GET";
    std::vector<HttpHeader> headers = {};
    std::span<std::byte> into = {};
    bool follow = true;  // redirects to other hosts
    /// Why an answer is invalid, so that the request is repeated; empty: it is valid.
    std::function<std::string(const HttpReply&)> problem = {};
  };
  struct Try;
  using Outcome = RetryLoop::Outcome;
  using Attempts = RetryLoop::Attempts;

  HttpReply send(const Call& call, const Context& context);
  Outcome take(const Call& call, Try& state, Attempts& attempts, HttpReply reply);
  Outcome judge(const Call& call, Try& state, Attempts& attempts, const HttpReply& reply);
  HttpReply exchange(const Call& call, const HubToken& token, const Context& context);
  std::optional<HttpReply> ask_again(const Call& call, const Context& context);
  HttpReply request(const Call& call, const std::string& url, const HubToken& token,
                    const Context& context);
  [[nodiscard]] bool is_ours(std::string_view url) const;
  [[nodiscard]] HubToken token() const;
  [[nodiscard]] HubToken look_up_token();
  [[nodiscard]] std::string about(const Call& call) const;
  [[nodiscard]] std::string doing(const Call& call) const;

  const HubSettings settings_;
  const Environment environment_;
  RetryLoop retries_;
  Redirects redirects_;
  std::atomic<std::uint64_t> fetched_bytes_{0};
  mutable RankedMutex mutex_{LockRank::leaf, "HubReader::mutex_"};  // guards token_
  HubToken token_;
  HttpClient http_;
};

}  // namespace weightfs
