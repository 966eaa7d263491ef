#include "store/s3/s3_bucket.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/sha256.hpp"
#include "store/http/reply_checks.hpp"
#include "store/s3/download.hpp"
#include "store/s3/request.hpp"
#include "store/s3/upload.hpp"
#include "store/s3/xml.hpp"

namespace weightfs {
namespace {

constexpr unsigned kParallelRequests = 16;
constexpr std::string_view kIfNoneMatch = "if-none-match";

S3Settings settings_for(std::string_view url, const BucketOptions& options,
                        const Environment& environment) {
  if (url.starts_with("hf://") && !options.endpoint_url.empty()) {
    throw Error(ErrorCode::invalid,
                "an hf:// URL has an endpoint of its own; use s3://BUCKET with --endpoint-url");
  }
  return find_s3_settings(options, environment);
}

bool is_legal_key(std::string_view key) {
  try {
    check_key(key);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Whether a service does not support the condition itself.
bool refuses_condition(const S3Refusal& refusal) {
  return refusal.status == 501 ||
         (refusal.status == 400 &&
          (refusal.code == "NotImplemented" || refusal.code == "InvalidArgument" ||
           refusal.message.find("If-None-Match") != std::string::npos));
}

}  // namespace

class S3Bucket::Impl {
 public:
  Impl(std::string_view url, const S3Settings& settings, Environment environment)
      : client(s3_address(url, settings), settings, std::move(environment)),
        uploader(client, memory) {}

  S3Call write_call(std::string_view key, const UploadPart& body) const;
  bool holds(std::string_view key, std::string_view bytes, const Context& context);
  [[nodiscard]] Error condition_refusal(const S3Call& call, const HttpReply& reply) const;
  S3Listing list_page(const std::string& prefix, const std::string& after,
                      const std::string& continuation, const Context& context);

  S3Client client;
  UploadMemory memory;
  S3Uploader uploader;
};

/// The PUT of a whole object.
S3Call S3Bucket::Impl::write_call(std::string_view key, const UploadPart& body) const {
  return {.action = "write",
          .key = key,
          .method = "PUT",
          .target = client.address().object(key),
          .body = &body,
          .body_bytes = body.size_bytes(),
          .body_sha256 = to_hex(sha256(body.bytes())),
          .problem = missing_etag};
}

/// Whether an object that this process may have written exists with exactly these bytes.
/// Throws Error: unavailable, whatever keeps it from being read.
bool S3Bucket::Impl::holds(std::string_view key, std::string_view bytes, const Context& context) {
  std::string found(bytes.size() + 1, '\0');
  try {
    const std::size_t size =
        s3_get(client, key, 0, std::as_writable_bytes(std::span(found)), context);
    return std::string_view(found).substr(0, size) == bytes;
  } catch (const Error& error) {
    throw may_be_done(error);
  }
}

/// Why an object was not written if it was absent.
Error S3Bucket::Impl::condition_refusal(const S3Call& call, const HttpReply& reply) const {
  if (!refuses_condition(read_refusal(reply))) return client.refusal_of(call, reply);
  return {ErrorCode::unsupported,
          fmt::format("the service of bucket {} does not support If-None-Match, which publishing "
                      "needs so that two publishers do not overwrite each other; use another "
                      "service (docs/OPERATIONS.md)",
                      client.address().url)};
}

S3Listing S3Bucket::Impl::list_page(const std::string& prefix, const std::string& after,
                                    const std::string& continuation, const Context& context) {
  HttpTarget target = client.address().root();
  target.query = {{"list-type", "2"}, {"encoding-type", "url"}, {"max-keys", "1000"}};
  if (!prefix.empty()) target.query.emplace_back("prefix", prefix);
  if (!continuation.empty()) {
    target.query.emplace_back("continuation-token", continuation);
  } else if (!after.empty()) {
    target.query.emplace_back("start-after", after);
  }
  S3Listing listing;
  const S3Call call{.action = "list",
                    .key = prefix,
                    .target = std::move(target),
                    .problem = problem_of_text(
                        [&](const std::string& text) { listing = read_s3_listing(text); })};
  client.send(call, context);
  return listing;
}

S3Bucket::S3Bucket(std::string_view canonical_url, const BucketOptions& options,
                   Environment environment) {
  const S3Settings settings = settings_for(canonical_url, options, environment);
  impl_ = std::make_unique<Impl>(canonical_url, settings, std::move(environment));
}

S3Bucket::~S3Bucket() = default;

std::size_t S3Bucket::get(std::string_view key, std::uint64_t offset_bytes,
                          std::span<std::byte> into, const Context& context) {
  check_key(key);
  return s3_get(impl_->client, key, offset_bytes, into, context);
}

void S3Bucket::put(std::string_view key, const Source& source, const Context& context) {
  check_key(key);
  context.check(fmt::format("writing object {} of bucket {}", key, url()));
  if (source.size_bytes() > kMultipartBytes) {
    impl_->uploader.put(key, source, context);
  } else {
    const UploadPart body(impl_->memory, source, 0, source.size_bytes(), context);
    impl_->client.send(impl_->write_call(key, body), context);
  }
  impl_->client.redirects().forget(key);  // it may lead to the previous bytes
}

Bucket::Put S3Bucket::put_if_absent(std::string_view key, std::string_view bytes,
                                    const Context& context) {
  check_key(key);
  context.check(fmt::format("writing object {} of bucket {}", key, url()));
  const UploadPart body(impl_->memory, TextSource(bytes), 0, bytes.size(), context);
  S3Call call = impl_->write_call(key, body);
  call.headers.push_back({std::string(kIfNoneMatch), "*"});
  call.is_once = true;
  call.expected = {400, 412, 501};
  const S3Answer answer = impl_->client.send(call, context);
  if (answer.reply.ok()) return Put::created;
  if (answer.reply.status == 412) {
    // The object may come from an earlier attempt of this call.
    const bool is_own = answer.repeated && impl_->holds(key, bytes, context);
    return is_own ? Put::created : Put::exists;
  }
  const Error refusal = impl_->condition_refusal(call, answer.reply);
  throw answer.repeated ? may_be_done(refusal) : refusal;
}

std::vector<ObjectInfo> S3Bucket::list_objects(std::string_view prefix, std::string_view after,
                                               const Context& context) {
  const std::string& root = impl_->client.address().prefix;
  const std::string full_prefix = root + std::string(prefix);
  const std::string full_after = after.empty() ? "" : root + std::string(after);
  std::vector<ObjectInfo> objects;
  S3Listing page;
  do {  // usually once; again if no key of a page counts
    const std::string continuation = std::move(page.continuation);
    page = impl_->list_page(full_prefix, full_after, continuation, context);
    for (ObjectInfo& object : page.objects) {
      if (!object.key.starts_with(full_prefix) || object.key <= full_after) continue;
      object.key.erase(0, root.size());
      if (is_legal_key(object.key)) objects.push_back(std::move(object));
    }
    if (objects.empty() && !continuation.empty() && page.continuation == continuation) {
      throw Error(ErrorCode::unavailable,
                  fmt::format("bucket {}: its list of objects does not advance", url()));
    }
  } while (objects.empty() && !page.continuation.empty());
  std::ranges::sort(objects, {}, &ObjectInfo::key);
  return objects;
}

Bucket::Time S3Bucket::now(const Context& context) {
  HttpTarget target = impl_->client.address().root();
  target.query = {{"list-type", "2"}, {"max-keys", "1"}};
  const std::string& root = impl_->client.address().prefix;  // keys may be confined to it
  if (!root.empty()) target.query.emplace_back("prefix", root);
  const S3Call call{.action = "list",
                    .key = "",
                    .target = std::move(target),
                    .problem = problem_of_text(read_s3_listing)};
  const HttpReply reply = impl_->client.send(call, context).reply;
  const auto date = reply.find("Date");
  const auto time = date ? parse_http_date(*date) : std::nullopt;
  if (time) return *time;
  throw Error(ErrorCode::unavailable,
              fmt::format("the service of bucket {} does not say what time it is", url()));
}

void S3Bucket::remove(std::string_view key, const Context& context) {
  check_key(key);
  const S3Call call{.action = "remove",
                    .key = key,
                    .method = "DELETE",
                    .target = impl_->client.address().object(key),
                    .expected = {404}};
  const HttpReply reply = impl_->client.send(call, context).reply;
  impl_->client.redirects().forget(key);
  if (reply.status == 404 && read_refusal(reply).code == "NoSuchBucket") {
    throw impl_->client.refusal_of(call, reply);
  }
}

const std::string& S3Bucket::url() const noexcept { return impl_->client.address().url; }

unsigned S3Bucket::parallel_requests() const noexcept { return kParallelRequests; }

}  // namespace weightfs
