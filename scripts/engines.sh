#!/usr/bin/env bash
# Makes a virtual environment with real engines that run on a CPU, from PyPI alone; pinned.
#
#   scripts/engines.sh hf [VENV]      transformers and torch: 0.6 GB to download, 1.4 GB on disk, half a minute
#   scripts/engines.sh vllm [VENV]    the same and vLLM: 0.95 GB to download, 2.8 GB on disk, two minutes
#
# VENV is build/engines-hf or build/engines-vllm unless named. Does nothing if it is complete and the pins
# (tests/support/engines/*.txt) are the same; what was half made is made again. The tests of hf run in either.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
usage() { sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  hf | vllm) ;;
  *) usage >&2; exit 2 ;;
esac
[ $# -le 2 ] || { usage >&2; exit 2; }
engine=$1
venv=$(realpath -m "${2:-$ROOT/build/engines-$engine}")
as_root "$engine" "$venv"
engines=$ROOT/tests/support/engines
sources=("$engines/hf.txt" "$engines/stub_cuda.py")
[ $engine = hf ] || sources+=("$engines/vllm.txt" "$engines/name_vllm.py")

# PyPI's torch is the CUDA build; its CUDA libraries are stubbed, not installed.
install_engine() {
  local python=$1/bin/python site
  pip_install "$1" --no-deps --requirement "$engines/$engine.txt"
  site=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["platlib"])')
  "$python" "$engines/stub_cuda.py" "$site"
  "$python" -c 'import torch, transformers
assert not torch.cuda.is_available()
print("torch", torch.__version__, "and transformers", transformers.__version__, "work")'
  [ $engine = hf ] && return
  "$python" "$engines/name_vllm.py" "$site"
  echo "vllm $("$1/bin/vllm" --version 2>/dev/null | tail -n 1) works"
}

need_packages python3 python3-venv gcc binutils libc6-dev
make_venv "$venv" "$(cat "${sources[@]}" | sha256sum)" install_engine
echo "$venv/bin/python"
