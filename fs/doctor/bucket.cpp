#include "fs/doctor/bucket.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "fs/doctor/service.hpp"
#include "store/base/error.hpp"
#include "store/repository/open_bucket.hpp"
#include "store/repository/probe.hpp"
#include "store/repository/repository.hpp"

namespace weightfs::fs {
namespace {

using State = Finding::State;

constexpr auto kLookTime = std::chrono::seconds(20);  // for each check

/// An error thrown by a check becomes a finding.
template <typename Look>
void look(std::vector<Finding>& findings, const char* what, const Context& context, Look&& body) {
  try {
    findings.push_back(body(context.within(kLookTime)));
  } catch (const Error& error) {
    if (context.stop.stop_requested()) throw;
    findings.push_back({what, State::bad, error.what()});
  }
}

/// `expected`: its id; empty: any.
Finding repository_finding(Bucket& bucket, const std::string& expected, const Context& context) {
  const auto another = [&](const std::string& found) -> Finding {
    return {"repository", State::bad, another_repository(bucket.url(), expected, found)};
  };
  try {
    const std::string record = get_all(bucket, keys::kRecord, 1u << 20, context);
    if (expected.empty()) return {"repository", State::good, "exists"};
    const std::string found = id_of_record(record, bucket.url());
    if (found != expected) return another(found);
    return {"repository", State::good, "the one that is mounted"};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
    if (!expected.empty()) return another("");
    return {"repository", State::note,
            fmt::format("none yet; create one with: weightfs init {}", bucket.url())};
  }
}

Finding write_finding(Bucket& bucket, bool can_read, const Context& context) {
  const ProbeResult result = probe_put_if_absent(bucket, context);
  switch (result.outcome) {
    case ProbeResult::Outcome::not_permitted:
      if (!can_read) return {"write", State::bad, result.why};
      return {
          "write", State::note,
          "read-only key: publishing is not possible from here, mounts are (" + result.why + ")"};
    case ProbeResult::Outcome::not_held:
      return {"write", State::bad,
              "two publishers could overwrite each other, so nothing may be published here; use "
              "another service: " +
                  result.why};
    case ProbeResult::Outcome::held:
      break;
  }
  if (result.left.empty()) return {"write", State::good, "possible; put-if-absent is supported"};
  return {
      "write", State::note,
      fmt::format("possible; put-if-absent is supported; the key may not remove objects, so the "
                  "probe {} stays: allow s3:DeleteObject for .probe-*, or remove it by hand",
                  result.left)};
}

}  // namespace

bool BucketDiagnosis::is_broken() const noexcept {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.state == State::bad; });
}

void look_at_bucket(Bucket& bucket, const Context& context, std::vector<Finding>& findings,
                    const std::string& repository) {
  // There was one: an empty directory may be where a file system is to be mounted.
  if (!repository.empty()) bucket.set_landmark(keys::kRecord);
  look(findings, "read", context, [&](const Context& soon) {
    Finding found = repository_finding(bucket, repository, soon);
    findings.push_back({"read", State::good, "possible"});
    return found;
  });
  const bool can_read = findings.back().what == "repository";
  look(findings, "list", context, [&](const Context& soon) -> Finding {
    bucket.list(keys::kVersions, "", soon);
    return {"list", State::good, "possible"};
  });
  look(findings, "write", context,
       [&](const Context& soon) { return write_finding(bucket, can_read, soon); });
}

BucketDiagnosis diagnose_bucket(const std::string& canonical_url, const BucketOptions& options,
                                const Context& context, const std::string& repository) {
  BucketDiagnosis diagnosis{canonical_url, {}};
  const bool is_service = directory_of_url(canonical_url).empty();
  if (is_service && !look_at_service(canonical_url, options, context, diagnosis.findings)) {
    return diagnosis;
  }
  std::unique_ptr<Bucket> bucket;
  try {
    bucket = open_bucket(canonical_url, false, options);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::invalid) throw;
    diagnosis.findings.push_back({"read", State::bad, error.what()});
    return diagnosis;
  }
  look_at_bucket(*bucket, context, diagnosis.findings, repository);
  return diagnosis;
}

}  // namespace weightfs::fs
