"""Judges by its media type, or by the ending of its name or address, whether a part of a prompt is
a sound or may be one: a provider bills sound at a rate of its own, wherever the part stands.

A film may have a sound. A part without a known type may be anything.
"""

from __future__ import annotations

from enum import IntEnum

_MOST_HEAD_CHARS = 256
_MOST_ENDING_CHARS = 8


class Sound(IntEnum):
    """The certainty that a part is a sound."""

    NO = 0
    MAYBE = 1
    YES = 2


# Types of applications (IANA's registry, 2026-11-29) that are texts, pages, tables and archives.
_SILENT_NAMES = """
    epub+zip gzip javascript json jsonl msword ndjson node pdf postscript rtf sql toml typescript
    x-httpd-php x-ipynb+json x-javascript x-json x-latex x-ndjson x-pdf x-python x-sh x-sql x-tar
    x-tex x-typescript x-yaml xhtml+xml xml yaml zip
"""
_SILENT = frozenset(_SILENT_NAMES.split())
_SILENT_VENDORS = (
    "vnd.apple.keynote",
    "vnd.apple.numbers",
    "vnd.apple.pages",
    "vnd.google-apps",
    "vnd.ms-",
    "vnd.oasis.opendocument",
    "vnd.openxmlformats-officedocument",
)
_NO_SOUND = """
    avif bmp c cc cpp cs css csv doc docx eml epub gif go h heic heif html htm ipynb java jpeg jpg
    js json jsonl kt log md odp ods odt pdf php pl png ppt pptx py r rb rs rtf sh sql svg swift tex
    tif tiff toml tsv txt webp xhtml xls xlsx xml yaml yml
"""
_SOUNDS = """
    aac ac3 aif aiff amr au caf flac m4a m4b mid midi mka mp2 mp3 mpga oga ogg opus pcm ra wav weba
    wma
"""
_SILENT_ENDINGS, _SOUND_ENDINGS = frozenset(_NO_SOUND.split()), frozenset(_SOUNDS.split())


def sound_of_type(media_type: str) -> Sound:
    """Return the certainty that a part of this media type is a sound."""
    kind, _, name = media_type.strip().lower().partition(";")[0].rstrip().partition("/")
    if kind == "audio":
        return Sound.YES
    if kind in ("font", "image", "text") and name:
        return Sound.NO
    is_silent = kind == "application" and (
        name in _SILENT or name.startswith(_SILENT_VENDORS) or name.endswith(("+json", "+xml"))
    )
    return Sound.NO if is_silent else Sound.MAYBE


def sound_of_name(name: str) -> Sound:
    """Return the certainty that a file with this name, or at this address, is a sound."""
    path = name.partition("#")[0].partition("?")[0]
    ending = path[-_MOST_ENDING_CHARS:].rpartition(".")[2].strip().lower()
    if ending in _SOUND_ENDINGS:
        return Sound.YES
    return Sound.NO if ending in _SILENT_ENDINGS and "." in path else Sound.MAYBE


def sound_of_data_url(url: str) -> Sound:
    """Return the certainty that the content of a `data:` URL is a sound."""
    return sound_of_type(url[5:_MOST_HEAD_CHARS].partition(",")[0])
