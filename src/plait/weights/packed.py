"""The packed file of a model: found, or written by one process while others wait.

Knows: what a packed file's key says, who writes. Must not know: how tensors are packed (native), what they are for.

The key names everything that the data depend on: the content of the model file, the packed layout, and each tensor
with type, shape and size in the order of the data. A file is asked for by its whole key, so nothing that stands in
a file leads anywhere else.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from plait import _native
from plait.weights.cache_folder import CacheError, CacheFolder, packed_name, temporary_name
from plait.weights.gguf import GgufFile
from plait.weights.identity import source_digest

_log = logging.getLogger(__name__)

STALLED_AFTER_S = 60.0
"""Another process that writes nothing for so long is not waited for."""
_POLL_S = 0.02
_MAX_TRIES = 3


class CacheSettings(msgspec.Struct, frozen=True):
    folder: Path
    max_bytes: int
    """What all packed files together may take."""
    share: bool | None = None
    """Compute with the file's own pages, which processes share. None: unless only a copy has huge pages."""


class PackedTensors(msgspec.Struct, frozen=True):
    """The tensors of a packed file, in the order of its data."""

    matrices: Sequence[str]
    vectors: Sequence[str]
    searched: frozenset[str] = frozenset()
    """Those matrices of which some requests want the largest product only: they are packed for that."""

    def matrix_bytes(self, file: GgufFile, name: str) -> int:
        return _native.Weights.matrix_bytes(file.native, name, name in self.searched)

    def num_bytes(self, file: GgufFile) -> int:
        return sum(self.matrix_bytes(file, name) for name in self.matrices) + sum(
            _native.Weights.vector_bytes(file.native, name) for name in self.vectors
        )


class _Wanted(msgspec.Struct, frozen=True):
    key: str
    num_bytes: int
    num_threads: int
    share: bool | None

    @property
    def name(self) -> str:
        return packed_name(hashlib.sha256(self.key.encode()).hexdigest())


def open_packed(
    file: GgufFile, tensors: PackedTensors, settings: CacheSettings, *, isa: str, num_threads: int
) -> tuple[_native.PackedFile, bool]:
    """The packed file of ``tensors``, and whether it was there already. Blocks on the disk, and while another
    process writes it.

    Raises:
        CacheError: it can neither be found nor written.
        NativeError: a tensor cannot be packed.
    """
    with CacheFolder(settings.folder) as folder:
        try:
            stamp = file.stamp
            digest = source_digest(file, folder, num_threads)
            num_bytes = tensors.num_bytes(file)
            key = _key_of(file, tensors, digest, _native.packed_layout_name(isa))
            wanted = _Wanted(key, num_bytes, num_threads, settings.share)
            found = _find(folder, wanted)
            if found is not None:
                return found, True
            if num_bytes > settings.max_bytes:
                raise CacheError(f"{num_bytes} bytes are more than weight_cache_bytes")
            return _write(folder, wanted, file, tensors, stamp)
        finally:
            for name in folder.trim(settings.max_bytes):
                _log.info("%s: removed, the folder had more than weight_cache_bytes", folder.path / name)


def _key_of(file: GgufFile, tensors: PackedTensors, digest: str, layout: str) -> str:
    lines = [f"packed by plait\nlayout {layout}\nsource {digest}"]
    for name in tensors.matrices:
        tensor = file.tensors[name]
        size = tensors.matrix_bytes(file, name)
        purpose = " searched" if name in tensors.searched else ""
        lines.append(f"matrix {name} {tensor.type} {'x'.join(map(str, tensor.shape))} {size}{purpose}")
    for name in tensors.vectors:
        size = _native.Weights.vector_bytes(file.native, name)
        lines.append(f"vector {name} {size}")
    return "\n".join(lines) + "\n"


def _find(folder: CacheFolder, wanted: _Wanted) -> _native.PackedFile | None:
    """None: there is none that is good."""
    try:
        return _native.PackedFile.open(
            folder.fd, wanted.name, wanted.key, wanted.num_bytes, wanted.num_threads, wanted.share
        )
    except _native.NativeError as error:
        code, message = error.args
        if code != "invalid_file":
            raise CacheError(f"{folder.path / wanted.name}: {message}") from None
        _log.warning("%s is not used and written anew: %s", folder.path / wanted.name, message)
        return None


def _write(
    folder: CacheFolder,
    wanted: _Wanted,
    file: GgufFile,
    tensors: PackedTensors,
    stamp: tuple[int, int, int, int],
) -> tuple[_native.PackedFile, bool]:
    for _ in range(_MAX_TRIES):
        before = folder.stat(wanted.name)
        try:
            writer = _wait_for_turn(folder, wanted)
            after = folder.stat(wanted.name)
            is_new = after is not None and (before is None or before.st_ino != after.st_ino)
            if is_new and (found := _find(folder, wanted)) is not None:
                return found, True
            for name in tensors.matrices:
                writer.add_matrix(file.native, name, wanted.num_threads, name in tensors.searched)
            for name in tensors.vectors:
                writer.add_vector(file.native, name)
            if file.stamp != stamp:
                raise CacheError(f"{file.path} changed while it was read")
            writer.publish()
            del writer  # a file that is open for writing gets no huge pages
        except _native.NativeError as error:
            code, message = error.args
            if code != "system":
                raise
            raise CacheError(f"{folder.path / wanted.name}: {message}") from None
        found = _find(folder, wanted)
        if found is not None:
            return found, False
    raise CacheError(f"{folder.path / wanted.name}: what was written cannot be read")


def _wait_for_turn(folder: CacheFolder, wanted: _Wanted) -> _native.PackedWriter:
    """The right to write, once nobody else has it."""
    progress = None
    last_progress_at = time.monotonic()
    while True:
        writer = _native.PackedWriter.try_create(folder.fd, wanted.name, wanted.key, wanted.num_bytes)
        if writer is not None:
            return writer
        if progress is None:
            _log.info("another process packs these weights; waiting for it")
        status = folder.stat(temporary_name(wanted.name))
        seen = (0, 0) if status is None else (status.st_size, status.st_mtime_ns)
        if seen != progress:
            progress, last_progress_at = seen, time.monotonic()
        elif time.monotonic() - last_progress_at > STALLED_AFTER_S:
            raise CacheError(
                f"another process packs these weights but wrote nothing for {STALLED_AFTER_S:g} s"
            )
        time.sleep(_POLL_S)
