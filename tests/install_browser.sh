#!/usr/bin/env bash
# Installs the browser that the dashboard's tests drive: Debian's chromium, its driver and a font. Does nothing where
# they are there already.
set -euo pipefail

packages=(chromium chromium-driver fonts-liberation)

has_browser() {
    { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null 2>&1
}

if has_browser && command -v chromedriver >/dev/null 2>&1; then
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "The browser tests need chromium and chromedriver, and there is no apt-get to install them with." >&2
    echo "Install both so that they are on the PATH, then run this again." >&2
    exit 2
fi
as_root=()
if [[ $(id -u) -ne 0 ]]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "Installing chromium needs root, and there is no sudo. As root, run:" >&2
        echo "  apt-get update && apt-get install --no-install-recommends ${packages[*]}" >&2
        exit 2
    fi
    as_root=(sudo)
fi
echo "Installing ${packages[*]} for the browser tests ..."
# ${as_root[@]+…}: an empty array counts as unset for `set -u` in old versions of bash.
${as_root[@]+"${as_root[@]}"} apt-get update --quiet --quiet
${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
    apt-get install --yes --quiet --quiet --no-install-recommends "${packages[@]}"
