#include "fs/report/screen.hpp"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "store/base/context.hpp"
#include "store/base/error.hpp"

namespace weightfs::fs {
namespace {

constexpr std::chrono::milliseconds kKeySlice{100};  // so soon a stop is noticed

constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l";  // the alternate screen, no cursor
constexpr std::string_view kLeave = "\x1b[?25h\x1b[?1049l";

/// What a terminal does not take is not shown; there is nobody to tell.
void write_terminal(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(STDOUT_FILENO, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

}  // namespace

Screen::Screen() {
  if (isatty(STDOUT_FILENO) != 1 || tcgetattr(STDIN_FILENO, &old_) != 0) {
    throw Error(ErrorCode::invalid,
                "a table that is redrawn needs a terminal; --once prints it once");
  }
  termios keys = old_;
  keys.c_lflag &= static_cast<tcflag_t>(~static_cast<tcflag_t>(ICANON | ECHO));
  keys.c_cc[VMIN] = 1;
  keys.c_cc[VTIME] = 0;
  keys.c_cc[VSUSP] = _POSIX_VDISABLE;  // else Ctrl-Z leaves this screen to the shell
  tcsetattr(STDIN_FILENO, TCSADRAIN, &keys);
  write_terminal(kEnter);
}

Screen::~Screen() {
  write_terminal(kLeave);
  tcsetattr(STDIN_FILENO, TCSADRAIN, &old_);
}

ScreenSize Screen::size() {
  winsize said{};
  ScreenSize size;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &said) != 0) return size;
  if (said.ws_col != 0) size.columns = said.ws_col;
  if (said.ws_row != 0) size.rows = said.ws_row;
  return size;
}

void Screen::draw(std::string_view frame) {
  std::string text = "\x1b[H";
  for (const char c : frame) text += c == '\n' ? "\x1b[K\r\n" : std::string(1, c);
  write_terminal(text + "\x1b[K\x1b[J");
}

std::optional<char> Screen::read_key(std::chrono::milliseconds limit, const std::stop_token& stop) {
  const auto end = Clock::now() + limit;
  while (!stop.stop_requested()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0) return std::nullopt;
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (poll(&input, 1, static_cast<int>(std::min(left, kKeySlice).count())) <= 0) continue;
    char key = 0;
    return ::read(STDIN_FILENO, &key, 1) == 1 ? key : '\0';
  }
  return std::nullopt;
}

}  // namespace weightfs::fs
