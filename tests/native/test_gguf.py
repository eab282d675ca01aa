"""The GGUF reader on well-formed files."""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import gguf_builder as build

from plait.errors import ModelFileError
from plait.weights.gguf import GgufFile, TensorInfo


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return path


def test_every_value_type(tmp_path: Path) -> None:
    entries = [
        build.scalar("u8", build.U8, 255),
        build.scalar("i8", build.I8, -128),
        build.scalar("u16", build.U16, 65535),
        build.scalar("i16", build.I16, -32768),
        build.scalar("u32", build.U32, 2**32 - 1),
        build.scalar("i32", build.I32, -(2**31)),
        build.scalar("u64", build.U64, 2**64 - 1),
        build.scalar("i64", build.I64, -(2**63)),
        build.scalar("f32", build.F32, 0.5),
        build.scalar("f64", build.F64, 0.1),
        build.scalar("yes", build.BOOL, True),
        build.scalar("no", build.BOOL, False),
        build.scalar("text", build.STRING, "caf\u00e9 \U0001f600 \0 inside"),
        build.entry("strings", build.ARRAY, build.array(build.STRING, ["", "a", "\u20ac"])),
        build.entry("floats", build.ARRAY, build.array(build.F32, [1.5, -2.0])),
        build.entry("ints", build.ARRAY, build.array(build.I32, [-1, 0, 7])),
        build.entry("bytes", build.ARRAY, build.array(build.U8, [0, 255])),
        build.entry("bools", build.ARRAY, build.array(build.BOOL, [True, False])),
        build.entry("empty", build.ARRAY, build.array(build.U64, [])),
        build.entry("nested", build.ARRAY, build.nested(4)),
    ]
    file = GgufFile(write(tmp_path, build.container(entries, [])))
    assert file.metadata == {
        "u8": 255,
        "i8": -128,
        "u16": 65535,
        "i16": -32768,
        "u32": 2**32 - 1,
        "i32": -(2**31),
        "u64": 2**64 - 1,
        "i64": -(2**63),
        "f32": 0.5,
        "f64": 0.1,
        "yes": True,
        "no": False,
        "text": "caf\u00e9 \U0001f600 \0 inside",
        "strings": ["", "a", "\u20ac"],
        "floats": [1.5, -2.0],
        "ints": [-1, 0, 7],
        "bytes": [0, 255],
        "bools": [True, False],
        "empty": [],
        "nested": [[[[7]]]],
    }
    assert file.metadata["yes"] is True
    assert file.tensors == {}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_tensors(tmp_path: Path, version: int, alignment: int) -> None:
    entries = [build.scalar("general.alignment", build.U32, alignment)]
    infos = [
        build.tensor("norm.weight", [8], build.T_F32, 0),
        build.tensor("proj.weight", [64, 3], build.T_Q8_0, alignment * 4),
    ]
    payload = struct.pack("<8f", *range(8)).ljust(alignment * 4, b"\0") + bytes(range(204))
    content = build.container(entries, infos, data=payload, version=version, alignment=alignment)
    path = write(tmp_path, content)
    file = GgufFile(path)
    start = len(content) - len(payload)
    assert list(file.tensors.values()) == [
        TensorInfo("norm.weight", (8,), "F32", 0, start, 32),
        TensorInfo("proj.weight", (64, 3), "Q8_0", 8, start + alignment * 4, 204),
    ]
    assert file.path == path
    assert file.native.alignment == alignment
    assert file.native.version == version
    view = file.tensor_bytes("proj.weight")
    del file
    assert view.readonly
    assert bytes(view) == bytes(range(204))
    assert memoryview(GgufFile(path).tensor_bytes("norm.weight")).cast("f").tolist() == list(range(8))


def test_unknown_tensor_name(tmp_path: Path) -> None:
    file = GgufFile(write(tmp_path, build.container([], [])))
    with pytest.raises(KeyError):
        file.tensor_bytes("absent")


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"absent\.gguf: cannot open: No such file"):
        GgufFile(tmp_path / "absent.gguf")
    with pytest.raises(ModelFileError, match="it is a directory"):
        GgufFile(tmp_path)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(ModelFileError, match="not a regular file"):
        GgufFile(fifo)
    secret = tmp_path / "secret.gguf"
    secret.write_bytes(b"GGUF")
    secret.chmod(0)
    if os.geteuid() != 0:
        with pytest.raises(ModelFileError, match="Permission denied"):
            GgufFile(secret)


def test_path_that_is_not_unicode(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/m\xff.gguf"))
    path.write_bytes(build.container([], []))
    assert GgufFile(path).path == path


def test_large_vocabulary_is_fast(tmp_path: Path) -> None:
    count = 262_144
    tokens = struct.pack("<IQ", build.STRING, count) + b"".join(build.text(f"token{i}") for i in range(count))
    scores = struct.pack("<IQ", build.F32, count) + bytes(4 * count)
    entries = [build.entry("tokens", build.ARRAY, tokens), build.entry("scores", build.ARRAY, scores)]
    path = write(tmp_path, build.container(entries, []))
    best_s = 10.0
    for _ in range(3):
        begin = time.perf_counter()
        file = GgufFile(path)
        best_s = min(best_s, time.perf_counter() - begin)
    assert best_s < 0.1
    words = file.metadata["tokens"]
    assert isinstance(words, list)
    assert words[0] == "token0"
    assert words[-1] == f"token{count - 1}"
    assert len(words) == count


def test_threads_can_share_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, build.TinyModel().build())
    file = GgufFile(path)
    seen: list[tuple[int, int]] = []

    def read() -> None:
        for _ in range(50):
            other = GgufFile(path)
            assert other.metadata == file.metadata
            seen.append((len(file.tensors), len(bytes(file.tensor_bytes("token_embd.weight")))))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert seen == [(20, 32 * 6 * 4)] * 200
