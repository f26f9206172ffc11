#!/usr/bin/env bash
# Installs the programs that tests drive, from Debian: chromium with its driver and a font for the dashboard's tests,
# promtool (of the package prometheus), which judges the alert rules, and PgBouncer, whose modes the gateway tells apart.
# Does nothing where they are there already.
set -euo pipefail

browser=(chromium chromium-driver fonts-liberation)

has() {
    command -v "$1" >/dev/null 2>&1
}

has_pgbouncer() {
    has pgbouncer || [[ -x /usr/sbin/pgbouncer ]]
}

has_browser() {
    { has chromium || has chromium-browser || has google-chrome; } && has chromedriver
}

# Fails where there is no browser; without the others, their tests are skipped.
give_up() {
    echo "$1" >&2
    has_browser || exit 2
    echo "Without promtool and pgbouncer the tests that need them are skipped." >&2
    exit 0
}

packages=() programs=()
has_browser || { packages+=("${browser[@]}") && programs+=(chromium chromedriver); }
has promtool || { packages+=(prometheus) && programs+=(promtool); }
has_pgbouncer || { packages+=(pgbouncer) && programs+=(pgbouncer); }
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
has promtool && has_pgbouncer && exit 0

# The packages would start servers, now and at every boot. A policy already there stays.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    trap 'root rm -f "$policy"' EXIT
    { printf '#!/bin/sh\nexit 101\n' | root tee "$policy" >/dev/null && root chmod 755 "$policy"; } ||
        give_up "$policy cannot be written: the packages would start servers."
fi
for package in prometheus pgbouncer; do
    [[ " ${packages[*]} " == *" $package "* ]] || continue
    apt_install "$package"
    if [[ -d /run/systemd/system ]]; then
        root systemctl disable --quiet "$package.service" || echo "$package.service stays enabled." >&2
    fi
done
