// init, publish, export, verify: what makes a repository and what comes out of it.

#include <fmt/format.h>

#include <ostream>

#include "fs/bucket_options.hpp"
#include "fs/coder_choice.hpp"
#include "fs/text_table.hpp"
#include "fs/verbs.hpp"
#include "store/bucket.hpp"
#include "store/bytes.hpp"
#include "store/error.hpp"
#include "store/log.hpp"
#include "store/publish.hpp"
#include "store/sparse_delta.hpp"
#include "store/verify.hpp"

namespace weightfs::fs {
namespace {

Json to_json(const PublishResult& result, const std::string& url, const std::string& tag) {
  return {{"url", url},
          {"version", result.version},
          {"tag", tag},
          {"parent", result.parent},
          {"changed_elements", result.changed_elements},
          {"elements", result.elements},
          {"version_bytes", result.version_bytes},
          {"uploaded_bytes", result.uploaded_bytes},
          {"snapshot", result.snapshot},
          {"unpublished", result.unpublished}};
}

std::string to_text(const PublishResult& result, const std::string& url, const std::string& tag) {
  std::string text = fmt::format("published version {}", result.version);
  if (!tag.empty()) text += fmt::format(" as {}", tag);
  if (result.parent == 0) {
    text += fmt::format(": {} uploaded\n", human_bytes(result.uploaded_bytes));
  } else {
    text += fmt::format(": {} of {} elements changed, {} uploaded for {}\n",
                        share_text(result.changed_elements, result.elements), result.elements,
                        human_bytes(result.uploaded_bytes), human_bytes(result.version_bytes));
  }
  for (const std::string& path : result.unpublished) {
    text += fmt::format("not published: {} (--include publishes it too)\n", printable(path));
  }
  return text + fmt::format("mount with: weightfs mount {} MOUNTPOINT\n", url);
}

Json to_json(const VerifyReport& report) {
  Json problems = Json::array();
  for (const Problem& problem : report.problems) {
    problems.push_back({{"object", problem.object}, {"message", problem.message}});
  }
  return {{"versions", report.versions},
          {"objects", report.objects},
          {"bytes", report.bytes},
          {"problems", std::move(problems)}};
}

std::string to_text(const VerifyReport& report) {
  std::string text;
  for (const Problem& problem : report.problems) {
    text += printable(fmt::format("{}: {}", problem.object, problem.message)) + "\n";
  }
  const std::string verdict =
      report.problems.empty() ? "no problems" : fmt::format("{} problems", report.problems.size());
  return text + fmt::format("verified {} versions, {} objects, {}: {}\n", report.versions,
                            report.objects, human_bytes(report.bytes), verdict);
}

VerifyReport verify(Call& call) {
  Reading reading(call);
  if (!reading.mount_point.empty()) {
    if (call.options.gpu)
      log_warning("--gpu: verifying a mount only hashes, and the CPU does that");
    return verify_tree(reading.history, reading.mount_point, reading.context, call.progress());
  }
  const ScratchDirectory scratch = make_scratch();
  const CoderChoice choice(call.options.gpu);
  return verify_repository(reading.history, scratch.path(), reading.context, call.progress(),
                           choice.coder());
}

}  // namespace

int run_init(Call& call) {
  const StopSignals signals;
  call.watch_bucket();
  bool created = false;
  const Target target{canonical_url(call.options.target), {}, {}};
  const auto repository = Repository::init(target.url, created, Context{.stop = signals.token()},
                                           bucket_options_for(call.options, target));
  const std::string text =
      fmt::format("{}: {}\npublish with: weightfs publish {} DIR\n",
                  created ? "made a repository" : "there is a repository already", repository->id(),
                  repository->url());
  call.print({{"url", repository->url()}, {"repository", repository->id()}, {"created", created}},
             text);
  return 0;
}

int run_publish(Call& call) {
  const Options& options = call.options;
  const Target target = resolve_target(options.target);
  if (!target.mount_point.empty()) return run_hand_over(call, target.mount_point);
  Reading reading(call, target);
  const std::string& id = reading.repository->id();
  const std::filesystem::path path =
      options.store.empty() ? Store::default_path(id) : std::filesystem::absolute(options.store);
  PublishStore publish_store = PublishStore::open(path, id, reading.url, StoreLimits{});
  History history(*reading.repository, &publish_store.store());
  const CoderChoice choice(options.gpu);
  const PublishOptions publish_options{.directory = options.directory,
                                       .tag = options.tag,
                                       .meta = options.meta,
                                       .include = options.include,
                                       .snapshot = options.snapshot,
                                       .coder = choice.coder(),
                                       .rebase = options.rebase,
                                       .at = {}};
  const PublishResult result =
      publish(history, publish_store.store(), publish_options, reading.context, call.progress());
  call.print(to_json(result, reading.url, options.tag), to_text(result, reading.url, options.tag));
  return 0;
}

/// `weightfs export --from A --to B`.
int run_export_delta(Call& call) {
  Reading reading(call);
  const VersionPair versions{call.options.version_from, call.options.version_b};
  const std::filesystem::path& file = call.options.directory;
  const CoderChoice choice(call.options.gpu);
  const std::uint64_t changed = export_sparse_delta(
      reading.history, versions, file, reading.context, call.progress(), choice.coder());
  const std::uint64_t bytes = std::filesystem::file_size(file);
  call.print({{"from", versions.from},
              {"to", versions.to},
              {"file", file.string()},
              {"changed", changed},
              {"bytes", bytes}},
             fmt::format("exported the change from version {} to {} to {}: {} elements, {}\n",
                         versions.from, versions.to, file.string(), changed, human_bytes(bytes)));
  return 0;
}

int run_export(Call& call) {
  if (call.options.version_from != 0) return run_export_delta(call);
  Reading reading(call);
  const auto version = reading.version(call.options.version_a);
  const auto layout = reading.history.layout(*version, reading.context);
  const std::filesystem::path& directory = call.options.directory;
  const CoderChoice choice(call.options.gpu);
  export_version(reading.history, version->number(), directory, reading.context, call.progress(),
                 choice.coder());
  const std::uint64_t bytes = version_bytes(version->manifest, *layout);
  call.print({{"version", version->number()}, {"directory", directory.string()}, {"bytes", bytes}},
             fmt::format("exported version {} to {}: {}\n", version->number(), directory.string(),
                         human_bytes(bytes)));
  return 0;
}

int run_verify(Call& call) {
  const VerifyReport report = verify(call);
  call.print(to_json(report), to_text(report));
  return report.problems.empty() ? 0 : 4;
}

}  // namespace weightfs::fs
