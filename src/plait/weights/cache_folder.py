"""The folder of cache files: where it is, whether it can be trusted, how large it may become.

Knows: names and sizes of files. Must not know: what is in them (``plait.weights.packed``, ``.identity``).

Cache files hold what a model computes with: whoever can write to the folder decides what the model says. So it
must belong to this user (or root), and nobody else may write to it. Everything goes through one descriptor of
the folder that was checked: what happens to its path afterwards does not matter.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import stat
from pathlib import Path
from types import TracebackType

from plait.weights.places import place

_log = logging.getLogger(__name__)

MAX_NOTES = 256
"""Small files that are kept: one for each model file that was used, about 300 bytes."""

_PACKED = re.compile(r"plait-[0-9a-f]{32}\.packed")
_NOTE = re.compile(r"plait-[0-9a-f]{32}\.source")
_TEMPORARY = re.compile(r"plait-[0-9a-f]{32}\.(packed|source)\.tmp")


class CacheError(Exception):
    """The cache cannot be used; the message says why. Nothing is lost but time."""


def default_folder() -> Path:
    """``PLAIT_CACHE_DIR``, else ``plait/packed`` in the XDG cache. Absolute.

    Raises:
        CacheError: nobody says where this user's files are.
    """
    try:
        return place("PLAIT_CACHE_DIR", "packed")
    except RuntimeError as error:
        raise CacheError(str(error)) from None


def packed_name(key_digest: str) -> str:
    """Name of the packed file whose key has this digest in hexadecimal digits."""
    return f"plait-{key_digest[:32]}.packed"


def note_name(stamp_digest: str) -> str:
    """Name of the note about the model file whose stamp has this digest."""
    return f"plait-{stamp_digest[:32]}.source"


def temporary_name(name: str) -> str:
    """Under which a file is written before it gets its name; ``PackedWriter`` uses the same."""
    return f"{name}.tmp"


class CacheFolder:
    """An open, trusted folder; a context manager."""

    def __init__(self, path: Path) -> None:
        """Creates the folder, for this user only, when it is not there.

        Raises:
            CacheError: it cannot be created or opened, or others may write to it.
        """
        self.path = path
        try:
            with contextlib.suppress(OSError):  # opening it says what is wrong
                path.mkdir(mode=0o700, parents=True)
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise CacheError(f"{path}: {error.strerror}") from None
        try:
            self._check_trust()
        except CacheError:
            os.close(self.fd)
            raise

    def _check_trust(self) -> None:
        status = os.fstat(self.fd)
        if status.st_uid not in (os.geteuid(), 0):
            raise CacheError(f"{self.path}: the folder belongs to user {status.st_uid}")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise CacheError(
                f"{self.path}: other users may write to the folder; chmod go-w it, or name another in PLAIT_CACHE_DIR"
            )

    def __enter__(self) -> CacheFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self.fd)

    def stat(self, name: str) -> os.stat_result | None:
        """None: there is no such file."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except OSError:
            return None

    def read_note(self, name: str) -> str | None:
        """The text of a small file of this user; None when there is none."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
        except OSError:
            return None
        try:
            status = os.fstat(fd)
            is_own = status.st_uid in (os.geteuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if not stat.S_ISREG(status.st_mode) or not is_own:
                return None
            return os.read(fd, 4096).decode("ascii")
        except (OSError, UnicodeDecodeError):
            return None
        finally:
            os.close(fd)

    def write_note(self, name: str, text: str) -> None:
        """Whole or not at all; a folder that cannot be written to is no error."""
        temporary = temporary_name(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(temporary, flags, 0o600, dir_fd=self.fd)
        except OSError:
            self._tell_of_folder(temporary)
            return  # read-only, or another process writes the same
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(text.encode("ascii"))
            os.rename(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except OSError:
            self._tell_of_folder(name)
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=self.fd)

    def _tell_of_folder(self, name: str) -> None:
        """No file takes the place of a folder: every start would be slow, and nobody would know why."""
        status = self.stat(name)
        if status is not None and stat.S_ISDIR(status.st_mode):
            _log.warning(
                "%s is a folder where the cache keeps a note; remove it: until then the whole model is read at "
                "each start",
                self.path / name,
            )

    def trim(self, max_bytes: int) -> list[str]:
        """Removes what killed writers left, and the packed files that were used longest ago until the others take
        at most ``max_bytes``; never one that a process uses. Returns the names of removed packed files."""
        packed: list[tuple[float, int, str]] = []
        notes: list[tuple[float, str]] = []
        for name in os.listdir(self.fd):
            status = self.stat(name)
            if status is None:
                continue
            if _PACKED.fullmatch(name):
                packed.append((status.st_mtime, status.st_size, name))
            elif _NOTE.fullmatch(name):
                notes.append((status.st_mtime, name))
            elif _TEMPORARY.fullmatch(name):
                self._remove_unused(name)
        for _, name in sorted(notes)[: max(len(notes) - MAX_NOTES, 0)]:
            self._remove_unused(name)
        removed = []
        total = sum(size for _, size, _ in packed)
        for _, size, name in sorted(packed):
            if total > max_bytes and self._remove_unused(name):
                total -= size
                removed.append(name)
        return removed

    def _remove_unused(self, name: str) -> bool:
        """Whoever writes or uses a file holds a lock on it, until it ends, however it ends."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = self.stat(name)
            if found is None or not os.path.samestat(found, os.fstat(fd)):
                return False
            os.unlink(name, dir_fd=self.fd)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True
