"""Writes log lines to a descriptor from a thread of its own, so that no request waits for the
reader of the log.

A full disk, a stopped reader or a closed pipe costs lines, which are counted; it stops neither the
process nor its start.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable

STDERR = 2
# A busy gateway writes a megabyte of lines in some seconds: longer than a disk hesitates.
MOST_BYTES = 4 * 2**20
CLOSE_WITHIN_S = 2.0


class LogWriter:
    """A bounded buffer of whole lines, and the thread that writes them to `descriptor`.

    `write` never blocks. Lines that find the buffer full, and lines that cannot be written, are
    dropped: `on_dropped` hears their number, and a line states it once writing works again.
    """

    def __init__(
        self,
        descriptor: int = STDERR,
        *,
        line_about: Callable[[int], bytes],
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """Start the thread. Make the writer after a fork: a thread does not survive one.

        `line_about` makes the line that states a number of dropped lines.
        """
        self._descriptor, self._most_bytes = descriptor, most_bytes
        self._line_about = line_about
        self._pieces: deque[bytes] = deque()
        self._size = 0  # of the pieces and of the one that is being written
        self._unsaid = 0
        self._is_torn = False  # a line was written in part
        self._is_closing = False
        self._changed = threading.Condition()
        self.on_dropped: Callable[[int], object] = lambda lines: None
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, lines: bytes) -> None:
        """Have whole lines written soon, or dropped if too many wait. Callable in any thread."""
        with self._changed:
            if self._size + len(lines) <= self._most_bytes:
                self._size += len(lines)
                self._pieces.append(lines)
                self._changed.notify_all()
                return
        self._note_dropped(lines)

    def close(self, within_s: float = CLOSE_WITHIN_S) -> None:
        """Write what waits, for at most `within_s`: a stopped reader does not stop the process."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(within_s)

    def _run(self) -> None:
        """Write pieces in their order until the writer is closed and none waits."""
        while True:
            with self._changed:
                while not self._pieces and not self._is_closing:
                    self._changed.wait()
                if not self._pieces:
                    return
                piece = self._pieces.popleft()
            self._write(piece)
            with self._changed:
                self._size -= len(piece)

    def _write(self, piece: bytes) -> None:
        """Write one piece, and then the number of lines that were dropped before it."""
        if not self._is_written(piece):
            self._note_dropped(piece)
            return
        with self._changed:
            dropped, self._unsaid = self._unsaid, 0
        if dropped and not self._is_written(self._line_about(dropped)):
            with self._changed:
                self._unsaid += dropped

    def _is_written(self, piece: bytes) -> bool:
        """Write a piece and return True, or return False if the descriptor does not take it."""
        rest = memoryview(b"\n" + piece if self._is_torn else piece)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # another process made the pipe non-blocking
                select.select([], [self._descriptor], [])
            except OSError:
                self._is_torn = len(rest) < len(piece)
                return False
        self._is_torn = False
        return True

    def _note_dropped(self, lines: bytes) -> None:
        """Count dropped lines."""
        count = lines.count(b"\n")
        with self._changed:
            self._unsaid += count
        self.on_dropped(count)


class LogStream:
    """The writer as a text stream, for loggers that want one."""

    def __init__(self, writer: LogWriter) -> None:
        """Make a stream over a writer."""
        self._writer = writer

    def write(self, text: str) -> int:
        """Have a whole line written soon."""
        self._writer.write(text.encode("utf-8", "replace"))
        return len(text)

    def flush(self) -> None:
        """Do nothing: no caller waits for a line."""
