"""GGUF model files. Knows: the container (through ``plait._native``). Must not know: architectures, plans.

A file is checked in full when it is opened; a bad one is one ``ModelFileError`` that names the file, the byte
or key, and what is wrong. Tensor data stays in the file: only the header is read.
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

import msgspec

from plait import _native
from plait.errors import ModelFileError


class TensorInfo(msgspec.Struct, frozen=True):
    """One tensor of a file."""

    name: str
    shape: tuple[int, ...]
    """In GGUF's order: ``shape[0]`` are the columns, contiguous in memory."""
    type: str
    """For example ``"Q4_1"``."""
    type_id: int
    offset: int
    """Of the first byte, from the start of the file."""
    num_bytes: int


class GgufFile:
    """An open, checked GGUF file; immutable, usable from any thread.

    Args:
        path: the file. It must not be shortened while it is open.

    Raises:
        ModelFileError: it is absent, unreadable, breaks the format or holds something that plait does
            not read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.native = _native.GgufFile.open(os.fsencode(self.path))
        except _native.NativeError as error:
            raise ModelFileError(f"{self.path}: {error.args[1]}") from None

    @cached_property
    def metadata(self) -> dict[str, object]:
        """Every key with its value: str, int, float, bool or a list of those. Converted on first use."""
        return self.native.metadata()

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """By name, in file order."""
        return {row[0]: TensorInfo(*row) for row in self.native.tensors()}

    @property
    def stamp(self) -> tuple[int, int, int, int]:
        """(inode, size, modified_ns, changed_ns) of this file as it is now, whatever its path leads to.

        Raises:
            ModelFileError: the system does not tell.
        """
        try:
            return self.native.stamp
        except _native.NativeError as error:
            raise ModelFileError(f"{self.path}: {error.args[1]}") from None

    def tensor_bytes(self, name: str) -> memoryview:
        """The tensor's bytes as they stand in the file: a read-only view that keeps the file open.

        Raises:
            KeyError: there is no tensor of that name.
        """
        if name not in self.tensors:
            raise KeyError(name)
        return self.native.tensor_bytes(name)


def explain_bus_errors() -> None:
    """From now on this process tells why it ends, if a file that it has mapped becomes shorter. For commands only."""
    _native.explain_bus_errors()
