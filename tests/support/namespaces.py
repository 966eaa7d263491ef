"""Network namespaces: hosts of a network of their own on this machine.

A namespace has no name: it lasts as long as the processes in it, of which one waits for the end of
this process, and so do its links.
"""

import os
import signal
import subprocess

import harness

PR_SET_PDEATHSIG = 1


def die_with_parent():
    """For preexec_fn."""
    harness.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Namespace:
    """`inside` is the command that runs another one in it."""

    def __init__(self):
        self.process = subprocess.Popen(["unshare", "--net", "sleep", "infinity"],
                                        preexec_fn=die_with_parent)
        own = os.readlink("/proc/self/ns/net")
        harness.wait_until(
            lambda: os.readlink(f"/proc/{self.process.pid}/ns/net") != own, "a network namespace")
        self.inside = ("nsenter", "--net", "--target", str(self.process.pid))
        self.run("ip", "link", "set", "lo", "up")

    def run(self, *command, **more):
        """Must succeed, unless check=False."""
        more.setdefault("check", True)
        return subprocess.run([*self.inside, *command], text=True, capture_output=True, **more)

    def connect(self, other, link, address, other_address):
        """A cable named `link` between the two, with an address at each end ("10.0.0.1/24")."""
        self.run("ip", "link", "add", link, "type", "veth", "peer", "name", link,
                 "netns", str(other.process.pid))
        for end, own in ((self, address), (other, other_address)):
            end.run("ip", "address", "add", own, "dev", link)
            end.run("ip", "link", "set", link, "up")

    def close(self):
        self.process.kill()
        self.process.wait()
