#include "store/aws/process.hpp"

#include <vector>

#include "store/aws/answers.hpp"
#include "store/base/error.hpp"
#include "store/base/json.hpp"
#include "store/os/child_process.hpp"

namespace weightfs {
namespace {

constexpr std::size_t kProcessOutputMax = 1u << 20, kProcessSaidMax = 400;

// The start of what the process printed, without control characters, and without anything that
// could be a key or a token: runs of 32 or more letters, digits and "+/=_-".
std::string fit_to_show(const std::string& said) {
  std::string shown, word;
  const auto end_word = [&] {
    shown += word.size() >= 32 ? "[hidden]" : word;
    word.clear();
  };
  for (const char c : said) {
    const bool may_be_key = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                            (c >= 'a' && c <= 'z') || c == '+' || c == '/' || c == '=' ||
                            c == '_' || c == '-';
    if (may_be_key) {
      word += c;
      continue;
    }
    end_word();
    const char plain = c < ' ' || c == 0x7F ? ' ' : c;
    if (plain != ' ' || !shown.ends_with(' ')) shown += plain;
  }
  end_word();
  if (shown.size() > kProcessSaidMax) shown = shown.substr(0, kProcessSaidMax) + "...";
  while (shown.ends_with(' ')) shown.pop_back();
  return shown;
}

void check_end(const ChildEnd& end, const std::string& source) {
  if (end.ok()) {
    if (!end.is_cut || end.output.size() < kProcessOutputMax) return;
    throw Error(ErrorCode::invalid, source + ": its credential_process wrote more than 1 MiB");
  }
  const std::string how = end.signal == 0 ? "ended with status " + std::to_string(end.exit_code)
                                          : "was killed by signal " + std::to_string(end.signal);
  const std::string said = fit_to_show(end.errors);
  // Most often its service is out of reach, or a login has expired: neither is a wrong setting.
  throw Error(ErrorCode::unavailable, source + ": its credential_process " + how +
                                          (said.empty() ? " without output" : ": " + said));
}

// Runs in this process's environment and directory, as with the AWS tools; agents that it starts
// may live on.
ChildEnd run_process(const std::vector<std::string>& words, const std::string& source,
                     const Context& context) {
  try {
    return run_child_process(
        {.argv = words, .keeps_apart = true, .output_bytes_max = kProcessOutputMax}, context);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::timed_out || error.code() == ErrorCode::cancelled) throw;
    throw Error(ErrorCode::invalid, source + ": its credential_process: " + error.what());
  }
}

std::vector<std::string> words_of(const std::string& command, const std::string& source) {
  std::vector<std::string> words;
  try {
    words = split_command(command);
  } catch (const Error& error) {
    throw Error(error.code(),
                source + ": its credential_process is not a command: " + error.what());
  }
  if (words.empty()) {
    throw Error(ErrorCode::invalid, source + ": its credential_process is empty");
  }
  return words;
}

void check_version(const std::string& output, const std::string& source) {
  std::string problem;
  try {
    if (json_uint(parse_json(output, "its output"), "Version", "its output") == 1) return;
    problem = "its output has a Version other than 1";
  } catch (const Error& error) {
    problem = error.what();
  }
  throw Error(ErrorCode::invalid,
              source + ": credential_process: " + problem +
                  " (expected {\"Version\": 1, \"AccessKeyId\": ..., \"SecretAccessKey\": ...})");
}

}  // namespace

AwsCredentials run_credential_process(const std::string& command, const std::string& source,
                                      const Context& context, Clock::duration timeout) {
  const std::vector<std::string> words = words_of(command, source);
  ChildEnd end;
  try {
    end = run_process(words, source, context.within(timeout));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timed_out) throw;
    context.check("waiting for the credential_process of " + source);
    throw Error(ErrorCode::unavailable, source + ": its credential_process " + words[0] +
                                            " did not end in time and was killed");
  }
  check_end(end, source);
  check_version(end.output, source);
  return parse_json_keys(end.output, "SessionToken", "credential_process of " + source);
}

}  // namespace weightfs
