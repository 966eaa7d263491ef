"""`weightfs top`: one frame without a terminal; on one it redraws, ends by q or a signal, and
leaves the terminal as it was."""

import os
import pty
import select
import signal
import subprocess
import sys
import termios

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

import harness  # noqa: E402
from harness import call, run, wait_until  # noqa: E402

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"


class Terminal:
    """A pseudo-terminal with `weightfs top` in it."""

    def __init__(self, *arguments):
        self.master, self.slave = pty.openpty()
        termios.tcsetwinsize(self.slave, (10, 60))
        self.before = termios.tcgetattr(self.slave)
        self.process = harness.start("top", *arguments, stdin=self.slave, stdout=self.slave,
                                     stderr=self.slave)
        self.seen = b""

    def read(self):
        while select.select([self.master], [], [], 0.05)[0]:
            self.seen += os.read(self.master, 65536)
        return self.seen

    def frames(self):
        return self.read().split(b"\x1b[H")[1:]

    def wait_end(self):
        wait_until(lambda: (self.read(), self.process.poll())[1] is not None, "its end")
        self.read()
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


class Top(harness.MountTest):
    def terminal(self, *arguments):
        terminal = Terminal(*arguments)
        self.addCleanup(terminal.close)
        return terminal

    def test_once_prints_a_frame(self):
        self.make_repository(2)
        mount = self.mount("--hook", "exec=/bin/true")
        mount.wait_status(lambda status: status["hooks"][0]["state"] == "current", "its hook")
        lines = run("top", mount.path, "--once").stdout.splitlines()
        self.assertEqual(lines[0].split()[:3], ["MOUNT", "POINT", "VERSION"])
        self.assertEqual(lines[1].split()[:4], [mount.path, "2", "0", "healthy"])
        self.assertIn("2 current", lines[1])
        self.assertIn(mount.path, run("top", "--once").stdout)
        said = call("top", mount.path)
        self.assertGreaterEqual(said["seconds"], 1)
        done = run("top", stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--once", done.stderr)

    def test_a_terminal_is_redrawn_and_restored(self):
        steps = self.make_repository(1)
        mount = self.mount()
        for end in ("q", signal.SIGINT, signal.SIGTERM):
            with self.subTest(end):
                terminal = self.terminal(mount.path)
                wait_until(lambda: len(terminal.frames()) >= 2, "it to be redrawn")
                self.assertIn(ENTER, terminal.seen)
                now = termios.tcgetattr(terminal.slave)
                self.assertFalse(now[3] & termios.ECHO)
                # Ctrl-Z would leave the shell on a screen without a cursor.
                self.assertEqual(now[6][termios.VSUSP], b"\0")
                for frame in terminal.frames():
                    for line in frame.decode().replace("\x1b[K", "").replace("\r", "").split("\n"):
                        self.assertLessEqual(len(line.split("\x1b")[0]), 60)
                if end == "q":
                    self.publish(steps[0])
                    wait_until(lambda: b" 2 " in terminal.frames()[-1], "the new version")
                    os.write(terminal.master, b"q")
                else:
                    terminal.process.send_signal(end)
                self.assertEqual(terminal.wait_end(), 0)
                self.assertTrue(terminal.seen.endswith(LEAVE), terminal.seen[-40:])
                self.assertEqual(termios.tcgetattr(terminal.slave), terminal.before)


if __name__ == "__main__":
    harness.main()
