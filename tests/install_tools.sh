#!/usr/bin/env bash
# Installs the programs that tests drive, from Debian: chromium with its driver and a font for the dashboard's tests,
# and promtool (of the package prometheus), which judges the alert rules. Does nothing where they are there already.
set -euo pipefail

browser=(chromium chromium-driver fonts-liberation)

has() {
    command -v "$1" >/dev/null 2>&1
}

has_browser() {
    { has chromium || has chromium-browser || has google-chrome; } && has chromedriver
}

# Fails where there is no browser; without promtool alone, two tests are skipped.
give_up() {
    echo "$1" >&2
    has_browser || exit 2
    echo "Without promtool the tests that ask Prometheus about the alert rules are skipped." >&2
    exit 0
}

packages=() programs=()
has_browser || { packages+=("${browser[@]}") && programs+=(chromium chromedriver); }
has promtool || { packages+=(prometheus) && programs+=(promtool); }
if [[ ${#packages[@]} -eq 0 ]]; then
    exit 0
fi

has apt-get || give_up "There is no apt-get to install ${programs[*]} with. Install by hand, so that it is on the PATH."
as_root=()
if [[ $(id -u) -ne 0 ]]; then
    has sudo || give_up "Installing ${programs[*]} needs root, and there is no sudo. As root, run:
  apt-get update && apt-get install --no-install-recommends ${packages[*]}"
    as_root=(sudo)
fi

# ${as_root[@]+…}: an empty array counts as unset for `set -u` in old versions of bash.
root() {
    ${as_root[@]+"${as_root[@]}"} "$@"
}

apt_install() {
    root env DEBIAN_FRONTEND=noninteractive \
        apt-get install --yes --quiet --quiet --no-install-recommends "$@" || give_up "apt-get could not install $*."
}

echo "Installing ${packages[*]} for the tests ..."
root apt-get update --quiet --quiet || give_up "apt-get could not update its lists."
has_browser || apt_install "${browser[@]}"
has promtool && exit 0

# The package would start a server on port 9090, now and at every boot. A policy already there stays.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    trap 'root rm -f "$policy"' EXIT
    { printf '#!/bin/sh\nexit 101\n' | root tee "$policy" >/dev/null && root chmod 755 "$policy"; } ||
        give_up "$policy cannot be written: prometheus would start a server."
fi
apt_install prometheus
if [[ -d /run/systemd/system ]]; then
    root systemctl disable --quiet prometheus.service || echo "prometheus.service stays enabled." >&2
fi
