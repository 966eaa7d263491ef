// Screen: the terminal while a command redraws it: the alternate screen, no cursor, keys one by
// one.  All is restored at the end, also when the command throws or was told to end by a signal
// that it catches.  Ctrl-Z is a key like others.
//
// Threads: one.
#pragma once

#include <termios.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <stop_token>
#include <string_view>

namespace weightfs::fs {

/// Of a terminal; where it does not say, 80 and 24.
struct ScreenSize {
  std::size_t columns = 80, rows = 24;
};

class Screen {
 public:
  /// Throws Error: invalid if standard input or output is no terminal.
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  /// Asked each time: it may have changed.
  [[nodiscard]] static ScreenSize size();

  /// Replaces what is shown.  Requires: it fits.
  static void draw(std::string_view frame);

  /// Waits for a key for `limit`, or until a stop.  Returns: nullopt: there was none; 0: there will
  /// be no more.
  static std::optional<char> read_key(std::chrono::milliseconds limit, const std::stop_token& stop);

 private:
  termios old_{};
};

}  // namespace weightfs::fs
