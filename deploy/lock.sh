#!/usr/bin/env bash
# Compile the requirements files: hashes, no index addresses, nothing younger than a week. They are universal: each holds
# the wheels of every Python that is supported (3.11, 3.12, 3.13).
set -euo pipefail
cd "$(dirname "$0")/.."
cutoff=$(date -u -d '7 days ago' +%F)
compile() { uv pip compile --python-version 3.11 --universal --generate-hashes --no-header --quiet --exclude-newer "$cutoff" "$@"; }
compile pyproject.toml --extra embedded --extra dashboard --extra dev -o requirements-dev.lock
compile pyproject.toml -c requirements-dev.lock -o requirements.lock
compile pyproject.toml -c requirements-dev.lock --extra dashboard -o requirements-dashboard.lock
compile pyproject.toml -c requirements-dev.lock --extra embedded --extra dashboard -o requirements-run.lock
compile - -o requirements-build.lock <<< 'hatchling
editables'
# The official FOCUS validator has a Python of its own, 3.12, and keeps the versions that it was tried with.
uv pip compile - --python-version 3.12 --generate-hashes --no-header --no-annotate --quiet -c tests/focus/requirements.txt \
  -o tests/focus/requirements.txt <<< 'focus-validator==2.2.1'
