#!/usr/bin/env bash
# Install what the benchmark measures with: nginx (the plain proxy and the mock upstream) and wrk (the load).
set -euo pipefail
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
