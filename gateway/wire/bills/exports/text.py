"""Decodes an export's bytes into text as they come, and splits it into lines; memory stays bounded
whatever the file's size.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator

MOST_LINE_CHARS = 2**20
_BREAK = re.compile(r"\r\n|\n|\r(?!$)")  # a carriage return at the end may be half of a break
_OTHER_FORMATS = {
    b"\xff\xfe": "it is UTF-16 text. Save it as UTF-8",
    b"\xfe\xff": "it is UTF-16 text. Save it as UTF-8",
    b"\x1f\x8b": "it is compressed. Decompress it first: gunzip FILE",
    b"PK": "it is a zip or a workbook. Unpack it, or save the sheet as CSV",
    b"PA": "it is Parquet. Export CSV instead",
}


class WrongExport(ValueError):
    """A wrong place in an export: its line, and the finding without the line's number."""

    def __init__(self, line: int, finding: str) -> None:
        """Keep the line's number and the finding."""
        super().__init__(finding)
        self.line = line
        self.finding = finding


def decoded(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield the text of a file's bytes, without a byte order mark. Raises `WrongExport`."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    line = 1
    is_begun = False
    for chunk in chunks:
        if not is_begun:
            wrong = _OTHER_FORMATS.get(chunk[:2])
            if wrong is not None:
                raise WrongExport(1, wrong)
            is_begun = True
        try:
            text = decoder.decode(chunk)
        except UnicodeDecodeError as broken:
            at = line + chunk.count(b"\n", 0, broken.start)
            raise WrongExport(at, "it is not UTF-8. Save it as UTF-8") from None
        line += chunk.count(b"\n")
        if text:
            yield text
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise WrongExport(line, "it ends within a character. Export it again") from None


def lines_of(texts: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a text, each with its line feed. Raises `WrongExport` for a huge line."""
    rest = ""
    number = 0
    for text in texts:
        *whole, rest = _BREAK.split(rest + text)
        for line in whole:
            number += 1
            yield f"{line}\n"
        if len(rest) > MOST_LINE_CHARS:
            raise WrongExport(number + 1, f"it is longer than {MOST_LINE_CHARS:,} characters")
    if rest:
        yield f"{rest.rstrip(chr(13))}\n"
