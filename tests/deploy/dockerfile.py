"""deploy/compose/Dockerfile, read far enough to check it and to run its commands."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = REPOSITORY / "deploy" / "compose" / "Dockerfile"


def stages() -> dict[str, list[str]]:
    """The instructions of each stage by its name, `FROM` first, continued lines joined."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("FROM "):
            _, _, keyword, name = line.split()
            assert keyword == "AS", line
            found[name] = []
        found[name].append(line.strip())
    return found
