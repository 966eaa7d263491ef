#!/usr/bin/env python3
"""Makes PyPI's CUDA build of torch importable without CUDA: saves 2.5 GB of libraries that a test on
a CPU never calls.

    stub_cuda.py SITE_PACKAGES          needs gcc and readelf

torch's libraries name libcudart, libcublas and others that come in wheels of their own. One library
is built that defines every function which torch wants from any of them, under the symbol versions
that it asks for; each answers 100, cudaErrorNoDevice, so that torch.cuda.is_available() is False.
All missing names in torch/lib, where torch's libraries look first, are symlinks to it: the
loader knows one file under many names. Running it again changes nothing.
"""

import os
import re
import subprocess
import sys
import tempfile

STUB = "libweightfs_no_cuda.so"
NO_DEVICE = 100
# What every Linux has; all else that torch itself does not bring is stubbed, even where the machine
# has it, so that the result is the same everywhere.
SYSTEM = re.compile(r"(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|libgomp|ld-linux.*)\.so")
CUDA_NAME = re.compile(r"_*cuda|cu[A-Z]|cu(blas|sparse|fft|dnn|rand|solver|pti)|p?nccl|nv(rtc|shmem|Jit|tx)|.*nvshmem")

# Functions that do not answer with a status, or give a result by pointer that is used anyway.
BODIES = {
    **dict.fromkeys(("cudaGetErrorString", "cudaGetErrorName", "ncclGetErrorString",
                     "ncclGetLastError", "nvrtcGetErrorString", "cudnnGetErrorString",
                     "cublasGetStatusString", "cusparseGetErrorString", "cusparseGetErrorName"),
                    ("const char*", 'return "no CUDA: stub library";')),
    "cudaGetDeviceCount": ("int", f"*(int*)at = 0; return {NO_DEVICE};"),
    "cudaRuntimeGetVersion": ("int", "*(int*)at = 0; return 0;"),
    "cudaDriverGetVersion": ("int", "*(int*)at = 0; return 0;"),
    "ncclGetVersion": ("int", "*(int*)at = 22907; return 0;"),
    "cudnnGetVersion": ("unsigned long", "return 92000;"),
}


def readelf(option, path):
    return subprocess.run(["readelf", option, "-W", path], check=True, stdout=subprocess.PIPE,
                          text=True).stdout


def own_libraries(folder):
    """torch's own: regular files. What is a symlink here was made by an earlier run."""
    return sorted(name for name in os.listdir(folder)
                  if ".so" in name and name != STUB and not os.path.islink(os.path.join(folder, name)))


def missing_libraries(folder, own):
    needed = set()
    for name in own:
        needed |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", os.path.join(folder, name))))
    return {name for name in needed - set(own) if not SYSTEM.match(name)}


def versions_of(path, missing):
    """The symbol versions that this library wants from the missing ones."""
    versions, wanted_from = set(), None
    for line in readelf("-V", path).splitlines():
        if found := re.search(r"File: (\S+)", line):
            wanted_from = found.group(1)
        if wanted_from in missing and (found := re.search(r"Name: (\S+)\s+Flags:", line)):
            versions.add(found.group(1))
    return versions


def symbols_of(path):
    """(name, version or "", defined here?, weak?) of each dynamic symbol."""
    for line in readelf("--dyn-syms", path).splitlines():
        columns = line.split()
        if len(columns) >= 8 and columns[0][:-1].isdigit():
            name, _, version = columns[7].partition("@")
            yield name, version.lstrip("@"), columns[6] != "UND", columns[4] == "WEAK"


def wanted_symbols(folder, own, missing):
    """{version, "" for none: names} that torch wants and does not bring."""
    wanted, plain, defined = {}, set(), set()
    for library in own:
        path = os.path.join(folder, library)
        wanted.update({version: set() for version in versions_of(path, missing) - wanted.keys()})
        for name, version, here, weak in symbols_of(path):
            if here:
                defined.add(name)
            elif version in wanted:
                wanted[version].add(name)
            elif not version and not weak and CUDA_NAME.match(name):
                plain.add(name)
    wanted[""] = plain - defined
    return wanted


def build(wanted, target):
    names = sorted(set().union(*wanted.values()))
    with tempfile.TemporaryDirectory() as work:
        source, script = os.path.join(work, "stub.c"), os.path.join(work, "stub.map")
        with open(source, "w") as file:
            for name in names:
                result, body = BODIES.get(name, ("int", f"return {NO_DEVICE};"))
                file.write(f"{result} {name}(void* at) {{ {body} }}\n")
        with open(script, "w") as file:
            for version in sorted(wanted.keys() - {""}):
                members = "".join(f" {name};" for name in sorted(wanted[version]))
                file.write(f"{version} {{{' global:' + members if members else ''} }};\n")
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-w", "-fno-builtin", f"-Wl,-soname,{STUB}",
                        f"-Wl,--version-script={script}", source, "-o", target], check=True)
    return len(names)


def drop_requirements(site):
    """torch no longer asks for the wheels that are replaced, so that pip does not fetch them later."""
    for folder in os.listdir(site):
        if re.match(r"torch-.*\.dist-info$", folder):
            path = os.path.join(site, folder, "METADATA")
            with open(path) as file:
                text = file.read()
            with open(path, "w") as file:
                file.write(re.sub(r"(?m)^Requires-Dist: (cuda-|nvidia-|triton).*\n", "", text))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = os.path.join(sys.argv[1], "torch", "lib")
    own = own_libraries(folder)
    missing = missing_libraries(folder, own)
    count = build(wanted_symbols(folder, own, missing), os.path.join(folder, STUB))
    for name in missing:
        link = os.path.join(folder, name)
        if os.path.lexists(link):
            os.unlink(link)
        os.symlink(STUB, link)
    drop_requirements(sys.argv[1])
    print(f"{count} functions of {len(missing)} CUDA libraries stubbed")


if __name__ == "__main__":
    main()
