"""A cgroup of a test's own, with a limit of memory."""

import os


class Cgroup:
    """Of version 1 or 2; its directory is below our own. `path` is None where none can be made."""

    def __init__(self, limit_bytes):
        self.path = None
        for parent, limit in self.places():
            path = os.path.join(parent, f"weightfs-test-{os.getpid()}")
            try:
                os.mkdir(path)
                self.path, self.limit = path, os.path.join(path, limit)
                self.set_limit(limit_bytes)
                return
            except OSError:
                self.close()

    def set_limit(self, limit_bytes):
        with open(self.limit, "w") as file:
            file.write(str(limit_bytes))

    def used_bytes(self):
        """What cannot be taken back: memory of processes, and files in tmpfs."""
        with open(os.path.join(self.path, "memory.stat")) as file:
            fields = dict(line.split() for line in file)
        names = ("total_rss", "total_shmem") if "total_rss" in fields else ("anon", "shmem")
        return sum(int(fields[name]) for name in names)

    @staticmethod
    def places():
        own = {}
        with open("/proc/self/cgroup") as file:
            for line in file:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                own[controllers] = path
        for controllers, path in own.items():
            if "memory" in controllers.split(","):
                for place in (path, "/"):
                    yield f"/sys/fs/cgroup/memory{place}", "memory.limit_in_bytes"
            elif controllers == "":
                yield f"/sys/fs/cgroup{path}", "memory.max"
                yield "/sys/fs/cgroup", "memory.max"

    def enter(self):
        """Takes the calling process in: for preexec_fn."""
        with open(os.path.join(self.path, "cgroup.procs"), "w") as file:
            file.write(str(os.getpid()))

    def close(self):
        if self.path and os.path.isdir(self.path):
            os.rmdir(self.path)
        self.path = None

    def try_close(self):
        """False while a process is in it."""
        try:
            self.close()
            return True
        except OSError:
            return False
