#include "fs/commands/commands.hpp"

#include <fmt/format.h>

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <ostream>

#include "fs/base/errno.hpp"
#include "fs/base/text_table.hpp"
#include "fs/cli/completions.hpp"
#include "fs/cli/man_pages.hpp"
#include "fs/client/mount_status.hpp"
#include "fs/commands/command_context.hpp"
#include "fs/commands/host_choice.hpp"
#include "kernels/dispatch/variant_table.hpp"
#include "store/base/error.hpp"
#include "store/base/log.hpp"
#include "store/catalog/version_word.hpp"
#include "store/local/sync_images.hpp"
#include "store/os/file.hpp"

namespace weightfs::fs {
namespace {

constexpr auto kWatchInterval = std::chrono::milliseconds(500);
constexpr auto kTellAfter = std::chrono::seconds(1);

int print_text(Call& call) {
  call.print({{"text", call.options.text}}, call.options.text);
  return 0;
}

int run_completion(Call& call) {
  const std::string script = completion_script(call.options.target);
  call.print({{"text", script}}, script);
  return 0;
}

int run_help(Call& call) {
  const std::filesystem::path& directory = call.options.directory;
  if (directory.empty()) return print_text(call);
  Json names = Json::array();
  for (const ManPage& page : man_pages()) {
    write_file(directory / page.name, page.text, 0644);
    names.push_back(page.name);
  }
  const std::string text = fmt::format("{} pages are in {}\n", names.size(), directory.string());
  call.print({{"pages", std::move(names)}}, text);
  return 0;
}

int dispatch(Call& call) {
  switch (call.options.command) {
    case Command::init:
      return run_init(call);
    case Command::publish:
      return run_publish(call);
    case Command::mount:
      return run_mount(call);
    case Command::sync:
      return run_sync(call);
    case Command::umount:
      return run_umount(call);
    case Command::wait:
      return run_wait(call);
    case Command::rebase:
      return run_rebase(call);
    case Command::rollback:
      return run_rollback(call);
    case Command::pin:
      return run_pin(call);
    case Command::unpin:
      return run_unpin(call);
    case Command::status:
      return run_status(call);
    case Command::top:
      return run_top(call);
    case Command::fleet:
      return run_fleet(call);
    case Command::log:
      return run_log(call);
    case Command::report:
      return run_report(call);
    case Command::show:
      return run_show(call);
    case Command::diff:
      return run_diff(call);
    case Command::export_:
      return run_export(call);
    case Command::verify:
      return run_verify(call);
    case Command::doctor:
      return run_doctor(call);
    case Command::du:
      return run_du(call);
    case Command::gc:
      return run_gc(call);
    case Command::skip:
      return run_skip(call);
    case Command::help:
      return run_help(call);
    case Command::completion:
      return run_completion(call);
    case Command::version:
      return print_text(call);
  }
  return 2;
}

void print_error_json(const Output& output, ErrorCode code, const std::string& message) {
  const Json json{{"error", {{"code", to_string(code)}, {"message", message}}}};
  output.out << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n' << std::flush;
}

int report(const Options& options, const Output& output, ErrorCode code,
           const std::string& message) {
  output.err << "weightfs: " << printable(message) << '\n' << std::flush;
  if (options.json) print_error_json(output, code, message);
  return to_exit_code(code);
}

int report_usage(const Options& options, const Output& output) {
  output.err << options.text << std::flush;
  if (options.json) print_error_json(output, ErrorCode::invalid, options.error);
  return to_exit_code(ErrorCode::invalid);
}

int run_guarded(const Options& options, const Output& output) {
  if (!options.error.empty()) return report_usage(options, output);
  for (const std::string& warning : options.warnings) {
    output.err << "weightfs: " << printable(warning) << '\n' << std::flush;
  }
  try {
    if (!options.kernels.empty()) static_cast<void>(kernels::choose_variant(options.kernels));
    Call call(options, output);
    const int exit_code = dispatch(call);
    if (output.out.flush()) return exit_code;
    return report(options, output, ErrorCode::io, "cannot write to the standard output");
  } catch (const Error& error) {
    return report(options, output, error.code(), error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    return report(options, output, code_of_errno(error.code().value()),
                  describe_errno(error.code().value(), "use " + error.path1().string()));
  } catch (const std::bad_alloc&) {
    return report(options, output, ErrorCode::no_memory, "not enough memory");
  } catch (const std::exception& error) {
    return report(options, output, ErrorCode::io, error.what());
  }
}

/// What a mount cannot give is read from its bucket: that must not be another run's.
void check_same_repository(const Repository& repository, const Target& target) {
  if (target.repository.empty() || repository.id() == target.repository) return;
  throw Error(
      ErrorCode::corrupt,
      fmt::format("there is another repository at {0} now: {1}; {2} shows versions of {3}. "
                  "To use the one that is there now, name {0}, not {2}",
                  target.url, repository.id(), target.mount_point.string(), target.repository));
}

/// A path in a mount, such as MOUNTPOINT/latest, was taken for the bucket.
void check_outside_mounts(const std::string& target) {
  if (target.find("://") != std::string::npos) return;
  const auto mount = find_served_around(std::filesystem::absolute(target));
  if (!mount) return;
  throw Error(ErrorCode::not_found, fmt::format("{0} lies in {1}, which weightfs shows; name {1}",
                                                target, mount->path.string()));
}

std::unique_ptr<Repository> open_visibly(Call& call, const Target& target, const Context& context) {
  call.watch_bucket();
  try {
    auto repository =
        Repository::open(target.url, context, bucket_options_for(call.options, target));
    check_same_repository(*repository, target);
    return repository;
  } catch (const Error& error) {
    const bool is_path = target.mount_point.empty() && error.code() == ErrorCode::not_found;
    if (is_path) check_outside_mounts(call.options.target);
    throw;
  }
}

/// Until a signal, or the timeout of `wait`.
Context context_of(const Call& call, const StopSignals& signals) {
  const Context context{.stop = signals.token()};
  const auto& timeout = call.options.wait.timeout;
  return timeout ? context.within(*timeout) : context;
}

[[noreturn]] void throw_no_latest(const std::filesystem::path& mount_point) {
  throw Error(
      ErrorCode::not_found,
      fmt::format("{0} has no `latest` yet; to wait for it: weightfs wait {0} --newer-than 0",
                  mount_point.string()));
}

/// What tags/TAG of a mount leads to.
std::optional<std::uint64_t> find_shown_tag(const std::filesystem::path& mount_point,
                                            const std::string& tag) {
  std::error_code error;
  const auto target = std::filesystem::read_symlink(mount_point / "tags" / tag, error);
  if (error) return std::nullopt;
  const Follow version = parse_follow(target.filename().string());
  return version.kind == Follow::Kind::version ? std::optional(version.version) : std::nullopt;
}

}  // namespace

int run_command(const Options& options, const Output& output) noexcept {
  try {
    return run_guarded(options, output);
  } catch (...) {
    return 1;  // not even the message could be printed
  }
}

// ---- shared by the commands ----

Call::Call(const Options& the_options, const Output& the_output)
    : options(the_options), output(the_output) {
  if (output.terminal && !options.quiet)
    line_ = std::make_unique<ProgressLine>(output.err, output.err_columns);
}

Progress Call::progress() {
  if (!line_) return {};
  return [this](std::string_view phase, std::uint64_t done, std::uint64_t total) {
    line_->update(phase, done, total);
  };
}

void Call::watch_bucket() {
  if (!line_ || watcher_.joinable()) return;
  watcher_ = std::jthread([this](const std::stop_token& stop) {
    std::mutex alone;
    std::unique_lock lock(alone);
    std::condition_variable_any never;
    while (!never.wait_for(lock, stop, kWatchInterval, [&] { return stop.stop_requested(); })) {
      line_->tell_silence();
    }
  });
}

void Call::tell_wait(std::string what) {
  if (options.quiet) return;
  teller_ =
      std::jthread([this, text = "waiting for " + std::move(what)](const std::stop_token& stop) {
        std::mutex alone;
        std::unique_lock lock(alone);
        std::condition_variable_any never;
        if (never.wait_for(lock, stop, kTellAfter, [&] { return stop.stop_requested(); })) return;
        if (line_) return line_->update(printable(text), 0, 0);
        output.err << "weightfs: " << printable(text) << '\n' << std::flush;
      });
}

void Call::tell(const std::string& text) {
  if (options.quiet) return;
  if (line_) return line_->update(printable(text), 0, 0);
  output.err << "weightfs: " << printable(text) << '\n' << std::flush;
}

void Call::print(const Json& json, const std::string& text) {
  watcher_ = std::jthread();
  teller_ = std::jthread();
  if (line_) line_->clear();
  if (options.json) {
    output.out << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
  } else {
    output.out << text;
  }
}

void Call::sync_kept(ImageTable& images, const Context& context) const {
  output.out.flush();
  try {
    sync_all_images(images, [&] { return context.stop.stop_requested(); });
  } catch (const std::exception& error) {
    log_warning(fmt::format("what the store keeps is not on the disk: {}", error.what()));
  }
}

Reading::Reading(Call& call) : Reading(call, resolve_target(call.options.target)) {}

Reading::Reading(Call& call, const Target& target)
    : context(context_of(call, signals)),
      url(target.url),
      mount_point(target.mount_point),
      latest(target.latest),
      repository(open_visibly(call, target, context)),
      history(*repository, nullptr) {}

std::uint64_t Reading::number_of(const std::optional<Follow>& word) {
  if (!word || mount_point.empty() || word->kind != Follow::Kind::latest) {
    return find_version(word.value_or(Follow{}), history, context);
  }
  if (latest == 0) throw_no_latest(mount_point);
  return latest;
}

std::uint64_t number_at(Call& call, std::uint64_t latest, const Follow& word) {
  if (word.kind == Follow::Kind::version) return word.version;
  return word.kind == Follow::Kind::latest ? latest : Reading(call).number_of(word);
}

std::uint64_t number_shown(Call& call, const Target& target, const Follow& word) {
  if (word.kind == Follow::Kind::version) return word.version;
  if (word.kind == Follow::Kind::latest) {
    if (target.latest == 0) throw_no_latest(target.mount_point);
    return target.latest;
  }
  const auto shown = find_shown_tag(target.mount_point, word.tag);
  return shown ? *shown : Reading(call).number_of(word);
}

ScratchDirectory make_scratch() {
  const char* parent = std::getenv("TMPDIR");
  return {parent != nullptr && *parent != '\0' ? parent : "/var/tmp", "weightfs-"};
}

std::uint64_t version_bytes(const Manifest& manifest, const Layout& layout) {
  std::uint64_t bytes = layout.size_bytes();
  for (const BlobRef& blob : manifest.blobs) bytes += blob.size_bytes;
  return bytes;
}

}  // namespace weightfs::fs
