"""Declares the names that a policy allows, in one place: the policy's reader, the headers of
requests and the commands take the same ones.

Each pattern matches the whole name, in Python and in JSON Schema.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
NAME_RULE = "use letters, digits, '.', '_' and '-', at most 63, the first a letter or digit"
MODEL = r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}"
UPSTREAM_MODEL = r"[A-Za-z0-9][A-Za-z0-9._:/@+=-]{0,199}"
ALIAS = r"[A-Za-z0-9*][A-Za-z0-9._:/@+*-]{0,199}"
MODEL_RULE = "use letters, digits and . _ : / @ + -, at most 200, the first a letter or digit"
PROJECT = r"[A-Za-z0-9][A-Za-z0-9._:/@+ -]{0,63}"
PROJECT_RULE = (
    "use letters, digits, blanks and . _ : / @ + -, at most 64, the first a letter or digit"
)


MOST_IN_FILE = 60  # letters; a part has at most three times as many bytes, a file's name 255


def line(most: int) -> str:
    """Return the pattern of a text on one line, of 1 to `most` characters, without blanks at its
    ends. Postgres stores no NUL.
    """
    return rf"[^\s\x00]([^\n\x00]{{0,{most - 2}}}[^\s\x00])?"


def file_part(name: str, *, among: Iterable[str] = ()) -> str:
    """Return a name as a part of a file's name: letters, digits, `-` and `_`, at most 190 bytes.

    Another name has another part, also for a folder that ignores case: a name that had to be
    changed or cut, or that another one `among` all differs from by case alone, has a part of its
    hash.
    """
    composed = unicodedata.normalize("NFC", name)
    plain = "".join(one if one.isalnum() or one in "-_" else "_" for one in composed)
    plain = plain[:MOST_IN_FILE].encode()[: 3 * MOST_IN_FILE].decode(errors="ignore")
    has_twin = any(one != name and one.casefold() == name.casefold() for one in among)
    if plain == name and not has_twin:
        return plain
    return f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
