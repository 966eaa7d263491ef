#!/usr/bin/env bash
# Makes a virtual environment with a real engine that runs on a CPU, from PyPI alone; pinned.
#
#   scripts/engines.sh hf [VENV]     transformers and torch (default VENV: build/engines-hf)
#
# 0.6 GB to download, 1.4 GB on disk, about half a minute. Does nothing if VENV is complete and the
# pins (tests/support/engines/hf.txt) are the same; what was half made is made again.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
usage() { sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  hf) ;;
  *) usage >&2; exit 2 ;;
esac
[ $# -le 2 ] || { usage >&2; exit 2; }
engine=$1
venv=$(realpath -m "${2:-$ROOT/build/engines-$engine}")
as_root "$engine" "$venv"
engines=$ROOT/tests/support/engines

# PyPI's torch is the CUDA build; its CUDA libraries are stubbed, not installed.
install_engine() {
  local python=$1/bin/python site
  pip_install "$1" --no-deps --requirement "$engines/$engine.txt"
  site=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["platlib"])')
  "$python" "$engines/stub_cuda.py" "$site"
  "$python" -c 'import torch, transformers
assert not torch.cuda.is_available()
print("torch", torch.__version__, "and transformers", transformers.__version__, "work")'
}

need_packages python3 python3-venv gcc binutils libc6-dev
make_venv "$venv" "$(cat "$engines/$engine.txt" "$engines/stub_cuda.py" | sha256sum)" install_engine
echo "$venv/bin/python"
