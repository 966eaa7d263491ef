#include "store/s3/upload.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "store/base/bytes.hpp"
#include "store/base/log.hpp"
#include "store/base/md5.hpp"
#include "store/base/sha256.hpp"
#include "store/s3/xml.hpp"
#include "store/threads/parallel.hpp"

namespace weightfs {
namespace {

constexpr std::uint64_t kPartsMax = 10'000;
constexpr unsigned kPartsInFlightMax = 8;
constexpr std::chrono::hours kLookAgain{1};  // the deadline may be infinite
constexpr auto kAbortTime = std::chrono::seconds(5);
constexpr auto kTidyTime = std::chrono::seconds(30);

/// The upload no longer exists: completed or aborted, perhaps by another client.
class UploadGone : public Error {
 public:
  using Error::Error;
};

std::string md5_of(std::span<const std::byte> bytes) {
  Md5Stream hash;
  hash.update(bytes);
  return hash.finish();
}

std::uint64_t part_bytes_of(std::uint64_t size_bytes) {
  constexpr std::uint64_t kUnit = 1u << 20;
  const std::uint64_t needed = (size_bytes + kPartsMax - 1) / kPartsMax;
  return std::max(kPartBytesMin, (needed + kUnit - 1) / kUnit * kUnit);
}

/// Throws Error: also where the service cannot list uploads, at the first answer.
std::vector<S3UploadEntry> list_uploads(S3Client& client, std::string_view prefix,
                                        const Context& context) {
  HttpTarget target = client.address().root();
  target.query = {{"uploads", ""}, {"prefix", std::string(prefix)}, {"max-uploads", "1000"}};
  const S3Call call{.action = "list", .key = prefix, .target = std::move(target)};
  // Not S3Call::problem: who gives no list now never does, and callers do without it.
  return read_s3_uploads(client.send(call, context).reply.text);
}

HttpTarget upload_target(S3Client& client, std::string_view key, const std::string& id) {
  HttpTarget target = client.address().object(key);
  target.query = {{"uploadId", id}};
  return target;
}

void abort_upload(S3Client& client, std::string_view key, const std::string& id,
                  const Context& context) noexcept {
  try {
    client.send({.action = "abort",
                 .key = key,
                 .method = "DELETE",
                 .target = upload_target(client, key, id),
                 .expected = {404}},
                context);
  } catch (const std::exception& error) {
    log_if_possible(LogLevel::debug, [&] {
      return fmt::format("an upload could not be aborted: {}", error.what());
    });
  }
}

/// The upload of one object in parts.
class Multipart {
 public:
  Multipart(S3Client& client, UploadMemory& memory, RunningUploads& running, std::string_view key,
            const Source& source, const Context& context)
      : client_(client),
        memory_(memory),
        running_(running),
        key_(key),
        source_(source),
        context_(context),
        size_(source.size_bytes()),
        part_bytes_(part_bytes_of(size_)),
        etags_(static_cast<std::size_t>((size_ + part_bytes_ - 1) / part_bytes_)) {}

  /// Returns: false if the upload disappeared meanwhile, so that it must be started again.
  bool run(bool may_resume) {
    if (may_resume) resume();
    if (id_.empty()) create();
    const RunningUploads::Run run(running_, id_);
    try {
      send_parts();
      complete();
      return true;
    } catch (const UploadGone& gone) {
      if (is_there()) return true;
      log_debug(gone.what());
      return false;
    } catch (...) {
      abort_upload(client_, key_, id_, Context{}.within(kAbortTime));
      throw;
    }
  }

 private:
  void resume();
  void keep_parts(const std::string& id);
  void create();
  void send_parts();
  void send_part(std::size_t index, const UploadPart& part);
  [[nodiscard]] bool is_kept(std::size_t index, const UploadPart& part) const;
  void complete();
  [[nodiscard]] bool is_there();
  [[nodiscard]] UploadGone gone() const {
    return {ErrorCode::unavailable,
            fmt::format("bucket {}: the upload of object {} was aborted by another client",
                        client_.address().url, key_)};
  }

  [[nodiscard]] std::uint64_t part_size(std::size_t index) const {
    return std::min(part_bytes_, size_ - index * part_bytes_);
  }

  S3Client& client_;
  UploadMemory& memory_;
  RunningUploads& running_;
  const std::string_view key_;
  const Source& source_;
  const Context& context_;
  const std::uint64_t size_, part_bytes_;
  std::string id_;
  std::map<unsigned, S3PartEntry> there_;  // parts already there, by number, in a resumed upload
  std::vector<std::string> etags_;         // by part number - 1
};

/// Best effort: some services cannot list uploads.
void Multipart::resume() {
  try {
    const std::string full_key = client_.address().prefix + std::string(key_);
    const S3UploadEntry* newest = nullptr;
    const std::vector<S3UploadEntry> uploads = list_uploads(client_, full_key, context_);
    for (const S3UploadEntry& upload : uploads) {
      if (upload.key != full_key) continue;
      if (newest == nullptr || upload.initiated > newest->initiated) newest = &upload;
    }
    if (newest != nullptr) keep_parts(newest->id);
  } catch (const Error& error) {
    context_.check("looking for an upload to resume");
    log_debug(fmt::format("no upload is resumed: {}", error.what()));
  }
}

void Multipart::keep_parts(const std::string& id) {
  std::map<unsigned, S3PartEntry> there;
  for (std::string marker = "0"; !marker.empty();) {
    HttpTarget target = upload_target(client_, key_, id);
    target.query.emplace_back("max-parts", "1000");
    if (marker != "0") target.query.emplace_back("part-number-marker", marker);
    S3Parts page;
    const S3Call call{
        .action = "list",
        .key = key_,
        .target = std::move(target),
        .problem = problem_of_text([&](const std::string& text) { page = read_s3_parts(text); })};
    client_.send(call, context_);
    for (S3PartEntry& part : page.parts) there[part.number] = std::move(part);
    // A marker that does not advance would cause an endless loop.
    marker = page.next_marker == marker ? "" : page.next_marker;
  }
  there_ = std::move(there);
  id_ = id;
}

void Multipart::create() {
  HttpTarget target = client_.address().object(key_);
  target.query = {{"uploads", ""}};
  const TextSource empty("");
  const S3Call call{
      .action = "write",
      .key = key_,
      .method = "POST",
      .target = std::move(target),
      .body = &empty,
      .problem = problem_of_text([&](const std::string& text) { id_ = read_s3_upload_id(text); })};
  client_.send(call, context_);
}

void Multipart::send_parts() {
  const auto in_flight = static_cast<unsigned>(
      std::clamp<std::uint64_t>(kUploadBytesMax / part_bytes_, 1, kPartsInFlightMax));
  parallel_for(etags_.size(), in_flight, context_, [&](std::size_t index) {
    const UploadPart part(memory_, source_, index * part_bytes_, part_size(index), context_);
    if (is_kept(index, part)) {
      etags_[index] = there_.at(static_cast<unsigned>(index + 1)).etag;
    } else {
      send_part(index, part);
    }
  });
}

bool Multipart::is_kept(std::size_t index, const UploadPart& part) const {
  const auto there = there_.find(static_cast<unsigned>(index + 1));
  if (there == there_.end() || there->second.size_bytes != part.size_bytes()) return false;
  const std::string md5 = md5_of(part.bytes());
  return !md5.empty() && there->second.etag == md5;
}

void Multipart::send_part(std::size_t index, const UploadPart& part) {
  HttpTarget target = upload_target(client_, key_, id_);
  target.query.emplace_back("partNumber", std::to_string(index + 1));
  const S3Call call{.action = "write",
                    .key = key_,
                    .method = "PUT",
                    .target = std::move(target),
                    .body = &part,
                    .body_bytes = part.size_bytes(),
                    .body_sha256 = to_hex(sha256(part.bytes())),
                    .expected = {404},
                    .problem = missing_etag};
  const HttpReply reply = client_.send(call, context_).reply;
  if (reply.status == 404) {
    if (read_refusal(reply).code == "NoSuchUpload") throw gone();
    throw client_.refusal_of(call, reply);
  }
  etags_[index] = *reply.find("ETag");
}

void Multipart::complete() {
  const std::string text = make_s3_completion(etags_);
  const TextSource body(text);
  const S3Call call{.action = "write",
                    .key = key_,
                    .method = "POST",
                    .target = upload_target(client_, key_, id_),
                    .headers = {{"Content-Type", "application/xml"}},
                    .body = &body,
                    .body_bytes = text.size(),
                    .body_sha256 = to_hex(sha256(as_bytes(text))),
                    .expected = {404},
                    .problem = [](const HttpReply& reply) -> std::string {
                      const std::string problem = problem_of_text(check_s3_completion)(reply);
                      return problem.empty() ? "" : "the completion was not confirmed: " + problem;
                    }};
  const HttpReply reply = client_.send(call, context_).reply;
  if (reply.status != 404) return;
  if (read_refusal(reply).code == "NoSuchUpload") throw gone();
  throw client_.refusal_of(call, reply);
}

bool Multipart::is_there() {
  const S3Call call{.action = "read",
                    .key = key_,
                    .method = "HEAD",
                    .target = client_.address().object(key_),
                    .expected = {404}};
  const HttpReply reply = client_.send(call, context_).reply;
  return reply.ok() && reply.find("Content-Length") == std::to_string(size_);
}

}  // namespace

void UploadMemory::take(std::uint64_t size_bytes, const Context& context) {
  std::unique_lock lock(mutex_);
  const auto has_room = [&] { return taken_ == 0 || taken_ + size_bytes <= kUploadBytesMax; };
  while (!changed_.wait_until(lock, context.stop,
                              std::min(context.deadline, Clock::now() + kLookAgain), has_room)) {
    context.check("waiting for memory for the upload");
  }
  taken_ += size_bytes;
}

void UploadMemory::give_back(std::uint64_t size_bytes) {
  {
    const std::lock_guard lock(mutex_);
    taken_ -= size_bytes;
  }
  changed_.notify_all();
}

UploadPart::UploadPart(UploadMemory& memory, const Source& source, std::uint64_t offset_bytes,
                       std::uint64_t size_bytes, const Context& context)
    : memory_(memory), size_(static_cast<std::size_t>(size_bytes)) {
  memory_.take(size_, context);
  try {
    bytes_ = std::make_unique_for_overwrite<std::byte[]>(size_);
    source.read(offset_bytes, {bytes_.get(), size_});
  } catch (...) {
    memory_.give_back(size_);
    throw;
  }
}

UploadPart::~UploadPart() {
  bytes_.reset();
  memory_.give_back(size_);
}

void UploadPart::read(std::uint64_t offset_bytes, std::span<std::byte> into) const {
  const auto part = bytes().subspan(static_cast<std::size_t>(offset_bytes), into.size());
  std::copy(part.begin(), part.end(), into.begin());
}

void S3Uploader::put(std::string_view key, const Source& source, const Context& context) {
  abort_old(key, context);
  if (Multipart(client_, memory_, running_, key, source, context).run(true)) return;
  if (Multipart(client_, memory_, running_, key, source, context).run(false)) return;
  throw Error(ErrorCode::unavailable,
              fmt::format("bucket {}: the upload of object {} was aborted twice by somebody else",
                          client_.address().url, key));
}

RunningUploads::Run::Run(RunningUploads& all, std::string id) : all_(all), id_(std::move(id)) {
  const std::lock_guard lock(all_.mutex_);
  all_.ids_.insert(id_);
}

RunningUploads::Run::~Run() {
  const std::lock_guard lock(all_.mutex_);
  all_.ids_.erase(all_.ids_.find(id_));
}

bool RunningUploads::contains(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  return ids_.contains(id);
}

bool TidyTimes::is_due(const std::string& prefix, Clock::time_point now) {
  const auto [tidied, is_first] = tidied_.try_emplace(prefix, now);
  if (!is_first && now - tidied->second < kUploadAgeMax) return false;
  tidied->second = now;
  return true;
}

/// Best effort, for each first component of keys by itself: other prefixes do not belong to this
/// repository.
void S3Uploader::abort_old(std::string_view key, const Context& context) {
  const std::string first(key.substr(0, key.find('/') + 1));
  if (first.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    if (!tidied_.is_due(first, now_())) return;
  }
  const std::string& prefix = client_.address().prefix;
  const std::string oldest =
      fmt::format("{:%Y-%m-%dT%H:%M:%S}",
                  fmt::gmtime(std::chrono::system_clock::to_time_t(client_.now() - kUploadAgeMax)));
  try {
    const Context soon = context.within(kTidyTime);
    for (const S3UploadEntry& upload : list_uploads(client_, prefix + first, soon)) {
      if (upload.initiated.empty() || upload.initiated >= oldest) continue;
      if (running_.contains(upload.id)) continue;
      abort_upload(client_, std::string_view(upload.key).substr(prefix.size()), upload.id, soon);
    }
  } catch (const Error& error) {
    context.check("looking for old uploads");
    log_debug(fmt::format("cannot look for old uploads: {}", error.what()));
  }
}

}  // namespace weightfs
