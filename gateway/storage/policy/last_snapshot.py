"""Writes and reads the encrypted file of the last policy snapshot, from which a worker that starts
without Postgres serves known keys.

    magic and format    20 bytes
    good_at              8 bytes, microseconds since 1970
    nonce               12 bytes, random
    the rest            AES-256-GCM over MessagePack; the bytes before the nonce are authenticated

The key is derived from the pepper (HKDF-SHA256), so a reader of the file alone learns nothing and
can forge nothing. A worker never replaces a newer snapshot with an older one: the older one might
hold a key that was revoked in between.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.domain.policy.api_keys import KeyRecord, Pepper
from gateway.domain.policy.last_snapshot import LastSnapshot, NotUsable
from gateway.domain.pricing.pricing import Price

SNAPSHOT = "snapshot"  # the name of the file, in the home
MAGIC = b"tollgate snapshot 1\n"
TIME_BYTES, NONCE_BYTES, TAG_BYTES, KEY_BYTES = 8, 12, 16, 32
HEAD_BYTES = len(MAGIC) + TIME_BYTES
# each use of the pepper has its own label, so no key serves two uses
_PURPOSE = b"tollgate last snapshot v1"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Body(msgspec.Struct, kw_only=True):
    version: int
    sha256: str
    document: str
    prices: dict[str, Price]
    keys: tuple[KeyRecord, ...]
    ejected: dict[str, str]


class SnapshotFile:
    """The snapshot file, shared by all workers of this machine.

    The first pepper encrypts it, any of them decrypts it.
    """

    def __init__(
        self, path: Path, peppers: Sequence[Pepper], *, now: Callable[[], datetime]
    ) -> None:
        """Take the file's path and the peppers whose derived keys read it; the first one also
        encrypts it.
        """
        self._path, self._new, self._now = path, path.with_name(f"{path.name}.new"), now
        self._ciphers = [AESGCM(_key(pepper)) for pepper in peppers]

    def write(self, last: LastSnapshot) -> bool:
        """Replace the snapshot unless the file has a newer one; return False if another worker is
        writing: try again soon.

        Raises `OSError`. Then there is no file at all, because an old one might hold a key revoked
        since.
        """
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(self._path.parent) as folder:
                if folder is None:
                    return False
                if not self._has_newer(last.good_at):
                    self._replace(self._sealed(last), folder)
        except OSError:
            for path in (self._new, self._path):
                with suppress(OSError):
                    path.unlink()
            raise
        return True

    def read(self) -> LastSnapshot:
        """Return the last snapshot; the caller judges its age. Raises `NotUsable`."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            raise NotUsable(f"there is none at {self._path}") from None
        except OSError as error:
            raise NotUsable(f"{self._path} cannot be read: {error.strerror}") from error
        return self._decoded_snapshot(content)

    def _sealed(self, last: LastSnapshot) -> bytes:
        """Return a snapshot as the file's content, encrypted under the current pepper."""
        body = _Body(
            version=last.version,
            sha256=last.sha256,
            document=last.document,
            prices=dict(last.prices),
            keys=last.keys,
            ejected=dict(last.ejected),
        )
        head = MAGIC + _microseconds(last.good_at).to_bytes(TIME_BYTES, "big")
        nonce = os.urandom(NONCE_BYTES)
        return head + nonce + self._ciphers[0].encrypt(nonce, msgspec.msgpack.encode(body), head)

    def _decoded_snapshot(self, content: bytes) -> LastSnapshot:
        """Return the snapshot in a file's content. Raises `NotUsable` if it is damaged, or of
        another version or pepper.
        """
        if not content.startswith(MAGIC) or len(content) < HEAD_BYTES + NONCE_BYTES + TAG_BYTES:
            raise NotUsable(f"{self._path} is damaged, or another version of Tollgate wrote it")
        head, nonce = content[:HEAD_BYTES], content[HEAD_BYTES : HEAD_BYTES + NONCE_BYTES]
        try:
            body = msgspec.msgpack.decode(
                self._decrypted(head, nonce, content[HEAD_BYTES + NONCE_BYTES :]), type=_Body
            )
        except (
            msgspec.DecodeError
        ) as error:  # authentic, so another version with other fields wrote it
            raise NotUsable(f"another version of Tollgate wrote {self._path}: {error}") from error
        return LastSnapshot(
            good_at=_EPOCH + timedelta(microseconds=_time_in(head)),
            version=body.version,
            sha256=body.sha256,
            document=body.document,
            prices=body.prices,
            keys=body.keys,
            ejected=body.ejected,
        )

    def _decrypted(self, head: bytes, nonce: bytes, sealed: bytes) -> bytes:
        """Return the decrypted content, under any of the peppers. Raises `NotUsable` if none
        fits.
        """
        for cipher in self._ciphers:
            with suppress(InvalidTag):
                return cipher.decrypt(nonce, sealed, head)
        raise NotUsable(f"{self._path} is damaged, or was made with another pepper")

    def _has_newer(self, good_at: datetime) -> bool:
        """Return True if the file holds a newer snapshot, because another worker queried Postgres
        later.

        A snapshot dated in the future is invalid and is replaced.
        """
        try:
            with self._path.open("rb") as file:
                head = file.read(HEAD_BYTES)
        except OSError:
            return False
        is_ours = head.startswith(MAGIC) and len(head) == HEAD_BYTES
        return is_ours and _microseconds(good_at) < _time_in(head) <= _microseconds(self._now())

    def _replace(self, content: bytes, folder: int) -> None:
        """Replace the snapshot file in one step, durably."""
        self._new.unlink(missing_ok=True)  # left by a worker that was killed while it wrote
        handle = os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(handle)
        self._new.replace(self._path)
        os.fsync(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[int | None]:
    """Yield the folder's handle if no other worker writes a snapshot in it, else None: never wait
    for a stopped worker.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield handle
    finally:
        os.close(handle)


def _key(pepper: Pepper) -> bytes:
    """Return the encryption key that is derived from a pepper."""
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=_PURPOSE).derive(pepper.secret)


def _microseconds(moment: datetime) -> int:
    """Return a moment in microseconds since 1970."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _time_in(head: bytes) -> int:
    """Return the time in a snapshot file's header, in microseconds since 1970."""
    return int.from_bytes(head[len(MAGIC) :], "big")
