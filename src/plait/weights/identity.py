"""Which content a model file has, known without reading all of it at every start.

A packed file is found by the SHA-256 of its source's content. Computing that takes as long as reading the file, so
it is computed once and noted together with the file's *stamp*: inode, size, time of the last write and time of the
last change of the inode. The last one cannot be set by a program: a write to the file raises it (but not one through a
mapping whose page was already written to since the last flush: models are replaced, not edited), and another file in
its place has one of its own. Where a file system does not keep its promises (some network and user-space ones), 16
blocks of the file, its beginning and end among them, must be those of the note as well. Not in the stamp: the path
and the device; copies of a model share its packed file, and device numbers change with reboots and containers.

A file that changed within the last seconds gets no note: it could change again within one tick of the clock, which
no stamp would show. Why SHA-256 and nothing faster: for any quicker checksum one can build a second file of the same
value, and a model from somewhere must not be able to pass its weights off as another's.
"""

from __future__ import annotations

import hashlib
import re
import time
from concurrent.futures import ThreadPoolExecutor

from plait.weights.cache_folder import CacheFolder, note_name
from plait.weights.gguf import GgufFile

Stamp = tuple[int, int, int, int]
"""(inode, size, modified_ns, changed_ns)."""

CHUNK_BYTES = 8 << 20
NUM_SAMPLES = 16
SAMPLE_BYTES = 4096
SETTLED_NS = 5_000_000_000
"""Coarser than the clock of any file system: FAT counts in 2 s."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


def source_digest(file: GgufFile, folder: CacheFolder, num_threads: int) -> str:
    """SHA-256 of the content of ``file``: from the note about it, else computed and noted."""
    stamp = file.stamp
    head = _note_head(stamp, _sample(file))
    name = note_name(hashlib.sha256(repr(stamp).encode()).hexdigest())
    known = _read_digest(folder.read_note(name), head)
    if known is not None:
        return known
    is_settled = time.time_ns() - max(stamp[2], stamp[3]) > SETTLED_NS
    digest = content_digest(file, num_threads)
    if is_settled and file.stamp == stamp:
        folder.write_note(name, _with_check(f"{head}{digest}\n"))
    return digest


def content_digest(file: GgufFile, num_threads: int) -> str:
    """SHA-256 over the SHA-256 of each 8 MiB, computed by several threads; memory holds only those."""
    view = file.native.file_bytes()

    def digest_chunk(offset: int) -> bytes:
        end = min(offset + CHUNK_BYTES, len(view))
        digest = hashlib.sha256(view[offset:end]).digest()
        file.native.release(offset, end - offset)
        return digest

    with ThreadPoolExecutor(num_threads, "plait-digest") as pool:
        parts = list(pool.map(digest_chunk, range(0, len(view), CHUNK_BYTES)))
    return hashlib.sha256(len(view).to_bytes(8, "little") + b"".join(parts)).hexdigest()


def _sample(file: GgufFile) -> str:
    view = file.native.file_bytes()
    last = max(len(view) - SAMPLE_BYTES, 0)
    offsets = [last * i // (NUM_SAMPLES - 1) for i in range(NUM_SAMPLES)]
    digest = hashlib.sha256()
    for offset in offsets:
        digest.update(view[offset : offset + SAMPLE_BYTES])
    return digest.hexdigest()


def _note_head(stamp: Stamp, sample: str) -> str:
    return f"plait source 1\n{' '.join(map(str, stamp))}\n{sample}\n"


def _with_check(text: str) -> str:
    """A note that was damaged must not lead to a digest that no file has."""
    return text + hashlib.sha256(text.encode("ascii")).hexdigest() + "\n"


def _read_digest(note: str | None, head: str) -> str | None:
    if note is None or not note.startswith(head):
        return None
    digest = note[len(head) : len(head) + 64]
    is_whole = _DIGEST.fullmatch(digest) is not None and note == _with_check(f"{head}{digest}\n")
    return digest if is_whole else None
