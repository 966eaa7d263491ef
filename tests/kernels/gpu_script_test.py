"""scripts/gpu.sh takes a device only from an nvidia-smi that found one.

The compilers here only pretend."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# What nvcc makes of objects is a program that says its name.
NVCC = r"""#!/bin/bash
[ "$1" = --version ] && { echo "Cuda compilation tools, release 13.0, V13.0.88"; exit; }
compiles=false
while [ $# -gt 0 ]; do
  [ "$1" = -c ] && { compiles=true; source=$2; }
  [ "$1" = -o ] && output=$2
  shift
done
if $compiles; then
  echo "ptxas info    : Compiling entry function 'kernel_of_$(basename "$source" .cu)' for 'sm_90'"
  echo "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
  echo "ptxas info    : Used 40 registers, used 1 barriers"
  touch "$output"
else
  printf '#!/bin/sh\necho ran %s\n' "$(basename "$output")" >"$output"
  chmod +x "$output"
fi
"""
CXX = '#!/bin/bash\nwhile [ $# -gt 0 ]; do [ "$1" = -o ] && touch "$2"; shift; done\n'
NO_DRIVER = """#!/bin/sh
echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
exit 9
"""
A_DEVICE = '#!/bin/sh\necho "8.9, NVIDIA L4, 580.65.06"\n'


class GpuScript(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="weightfs-gpu-script-"))
        self.addCleanup(shutil.rmtree, self.dir)
        (self.dir / "scripts").mkdir()
        (self.dir / "bin").mkdir()
        shutil.copy(ROOT / "scripts" / "gpu.sh", self.dir / "scripts")
        for folder in ("kernels", "tests"):
            (self.dir / folder).symlink_to(ROOT / folder)
        self.program("nvcc", NVCC)
        self.program("fake-g++", CXX)

    def program(self, name, text):
        path = self.dir / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def run_with(self, nvidia_smi):
        self.program("nvidia-smi", nvidia_smi)
        path = f"{self.dir}/bin:{os.environ['PATH']}"
        done = subprocess.run([self.dir / "scripts" / "gpu.sh"], capture_output=True, text=True,
                              env={**os.environ, "PATH": path, "CXX": "fake-g++"}, timeout=300,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("| kernel_of_fold_lane | 40 | 0 | 0 | 0 |", done.stdout)
        return done.stdout

    def test_without_a_driver_nothing_runs(self):
        said = self.run_with(NO_DRIVER)
        self.assertIn("building for sm_90", said)
        self.assertIn("Nothing ran: this machine has no CUDA device.", said)
        self.assertNotIn("ran cuda_check", said)

    def test_on_a_device_the_table_is_printed_and_all_is_run(self):
        said = self.run_with(A_DEVICE)
        self.assertIn("building for sm_89", said)
        self.assertIn("device: 8.9, NVIDIA L4", said)
        self.assertIn("ran cuda_check\n", said)
        self.assertIn("ran gpu_bench\n", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
