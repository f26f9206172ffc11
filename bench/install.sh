#!/usr/bin/env bash
# Install what the benchmark measures with: nginx (the plain proxy and the mock upstream) and wrk (the load).
# With --peers also LiteLLM and the vLLM router, each in a virtual environment of its own (about 1 GB).
set -euo pipefail
install_peers() {
  local folder=${TOLLGATE_BENCH_PEERS:-$HOME/.tollgate/bench} python=${PYTHON:-python3}
  local -A wanted=([litellm]="litellm[proxy]==1.106.2" [vllm-router]="vllm-router==0.1.17")  # as in bench/stand/peers.py
  for name in "${!wanted[@]}"; do
    [ -x "$folder/$name/bin/$name" ] && { echo "$name is in $folder."; continue; }
    "$python" -m venv "$folder/$name"
    "$folder/$name/bin/pip" install --quiet --disable-pip-version-check "${wanted[$name]}"
  done
}
[ "${1:-}" = --peers ] && install_peers
missing=()
command -v nginx >/dev/null || missing+=(nginx-light)
[ -e /usr/lib/nginx/modules/ngx_http_lua_module.so ] || missing+=(libnginx-mod-http-lua)
command -v wrk >/dev/null || missing+=(wrk)
[ ${#missing[@]} -eq 0 ] && { echo "nginx, its Lua module and wrk are here."; exit 0; }
command -v apt-get >/dev/null || { echo "Install by hand (this is no Debian): ${missing[*]}" >&2; exit 2; }
as_root=(); [ "$(id -u)" -eq 0 ] || as_root=(sudo)
# The packages would start nginx on port 80; the benchmark starts its own, on free ports. A policy already there stays.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod 755 "$policy"
  trap '"${as_root[@]}" rm -f "$policy"' EXIT
fi
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${missing[@]}"
