// Hook options: one --hook of the command line.
//
//     vllm=http://127.0.0.1:8000              vllm-lora=http://127.0.0.1:8000,name=my-adapter
//     sglang=http://127.0.0.1:30000,every=2 http=http://127.0.0.1:9000/weights,token-file=/run/key
//     exec=/usr/local/bin/new-weights --fast
//
// A URL may be followed by options, each as ",KEY=VALUE": every=SECONDS (how often the engine is
// asked; default 5), timeout=SECONDS (for one update; default 900), token-file=FILE (its text is
// sent as a bearer token); for vllm inplace=yes|no and kv=reset|keep; for vllm-lora name=NAME,
// inplace=yes|no and reset=yes|no.
// Everything after exec= is the command: words, split at spaces. '...', "..." and \ quote as in a
// shell; no other character is special.
//
// Threads: pure functions.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace weightfs::fs {

enum class HookType { vllm, vllm_lora, sglang, http, exec };
std::string_view to_string(HookType type) noexcept;  // "vllm-lora"

struct HookOptions {
  HookType type{};
  std::string text;               // as given; must not be shown
  std::string url;                // without a trailing '/'; empty for exec
  std::vector<std::string> argv;  // exec
  std::chrono::milliseconds every{5'000};
  std::chrono::milliseconds timeout{900'000};
  std::filesystem::path token_file;  // empty: none
  std::string name;                  // vllm-lora
  bool is_in_place = true;           // vllm, vllm-lora
  bool keeps_running = false;        // vllm: kv=keep
  bool is_reset = true;              // vllm-lora: reset the prefix cache

  /// The URL without its query; empty for exec.
  [[nodiscard]] std::string shown_url() const;
  /// For people: the URL without its query, or the program without its arguments.
  [[nodiscard]] std::string target() const;
  /// Which engine it is for, whatever its other options are: "vllm=http://127.0.0.1:8000"; for
  /// exec, the whole text.  Must not be shown.
  [[nodiscard]] std::string identity() const;
  /// "http://localhost:8000", also for 127.0.0.1 and [::1]: two hooks of the same origin never work
  /// at the same time.  For exec, the whole text.
  [[nodiscard]] std::string origin() const;
};

/// Throws Error: invalid, saying what was expected.
HookOptions parse_hook(std::string_view text);

/// "127.0.0.1" and 8000 for "http://127.0.0.1:8000/x"; brackets are removed.  Without a port it is
/// the scheme's default.  Throws Error: invalid.
struct UrlPlace {
  std::string host;
  std::uint16_t port = 0;
};
UrlPlace place_of_url(std::string_view url);

}  // namespace weightfs::fs
