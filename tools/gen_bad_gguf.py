"""Writes malformed GGUF files, each wrong in one way, with the words that its error must contain.

    python tools/gen_bad_gguf.py DIR            the malformed files; DIR/expected.json has the words for each
    python tools/gen_bad_gguf.py --seeds DIR    well-formed files as well: a starting corpus for the fuzzer

Standard library only. The files are small (a "huge" one is sparse), so the tests build them afresh.
"""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Iterator
from pathlib import Path

from bad_gguf_models import model_cases
from gguf_builder import (
    ARRAY,
    BOOL,
    F32,
    F64,
    MAX_U64,
    STRING,
    T_F16,
    T_F32,
    T_Q4_K,
    T_Q8_0,
    U8,
    U16,
    U32,
    U64,
    VALUE_FORMATS,
    BadFile,
    TinyModel,
    array,
    container,
    entry,
    nested,
    scalar,
    tensor,
    text,
)

ARCH = scalar("general.architecture", STRING, "llama")
NAME = scalar("general.name", STRING, "bad")


def header_cases() -> Iterator[BadFile]:
    good = container([ARCH], [])
    yield BadFile("empty-file", b"", "the file is empty")
    yield BadFile("one-byte", b"G", "the file ends inside the magic number")
    yield BadFile("magic-only", b"GGUF", "the file ends inside the version")
    yield BadFile(
        "wrong-magic", container([ARCH], [], magic=b"GGML"), "not a GGUF file: it starts with 'GGML'"
    )
    yield BadFile("html-page", b"<!DOCTYPE html><html>Not found</html>", "it starts with '<!DO'")
    yield BadFile("lfs-pointer", b"version https://git-lfs.github.com/spec/v1\n", "it starts with 'vers'")
    yield BadFile("zip-archive", b"PK\x03\x04" + bytes(60), "it starts with 'PK\\x03\\x04'")
    yield BadFile("all-zero", bytes(4096), "it starts with '\\x00\\x00\\x00\\x00'")
    yield BadFile("version-0", container([ARCH], [], version=0), "version 0 does not exist")
    yield BadFile("version-1", container([ARCH], [], version=1), "version 1 is not supported")
    yield BadFile("version-4", container([ARCH], [], version=4), "version 4 is not supported")
    big_endian = b"GGUF" + struct.pack(">IQQ", 3, 0, 0)
    yield BadFile("big-endian", big_endian, "big-endian GGUF files are not supported")
    yield BadFile("cut-in-tensor-count", good[:12], "the file ends inside the number of tensors")
    yield BadFile("cut-in-key-count", good[:20], "the file ends inside the number of metadata keys")
    for label, count in (("huge", MAX_U64), ("above-the-bytes", 1000)):
        yield BadFile(
            f"tensor-count-{label}",
            container([ARCH], [], num_tensors=count),
            f"the file claims {count} tensors",
        )
        yield BadFile(
            f"key-count-{label}",
            container([ARCH], [], num_keys=count),
            f"the file claims {count} metadata keys",
        )
    sparse = 200 << 20
    yield BadFile(
        "tensor-count-above-limit",
        container([], [], num_tensors=70_000),
        "70000 tensors; plait reads up to",
        sparse_size=sparse,
    )
    yield BadFile(
        "key-count-above-limit",
        container([], [], num_keys=70_000),
        "70000 metadata keys; plait reads up to",
        sparse_size=sparse,
    )


def key_cases() -> Iterator[BadFile]:
    yield BadFile(
        "key-length-huge", container([struct.pack("<Q", MAX_U64) + b"k" * 40], []), "a metadata key claims"
    )
    yield BadFile(
        "key-length-sign", container([struct.pack("<Q", 1 << 63) + b"k" * 40], []), "a metadata key claims"
    )
    yield BadFile("key-empty", container([scalar("", U8, 1), ARCH], []), "byte 24: a metadata key is empty")
    yield BadFile(
        "key-too-long",
        container([scalar("k" * 65536, U8, 1)], []),
        "has 65536 bytes; the format allows 65535",
    )
    yield BadFile("key-not-utf8", container([scalar(b"k\xff\xfe", U8, 1)], []), "'k\\xff\\xfe' is not UTF-8")
    yield BadFile(
        "key-overlong-utf8", container([scalar(b"k\xc0\xaf", U8, 1)], []), "'k\\xc0\\xaf' is not UTF-8"
    )
    yield BadFile("key-surrogate", container([scalar(b"\xed\xa0\x80", U8, 1)], []), "is not UTF-8")
    yield BadFile("key-cut-utf8", container([scalar(b"key\xe2\x82", U8, 1)], []), "is not UTF-8")
    yield BadFile(
        "key-zero-byte", container([scalar("a\0b", U8, 1)], []), "'a\\x00b' contains control characters"
    )
    yield BadFile("key-newline", container([scalar("a\nb", U8, 1)], []), "contains control characters")
    yield BadFile("key-twice", container([ARCH, NAME, ARCH], []), "'general.architecture' occurs twice")
    yield BadFile("file-ends-in-key", container([ARCH, NAME], [])[:80], "a metadata key claims 12 bytes")


def value_cases() -> Iterator[BadFile]:
    yield BadFile("value-type-13", container([entry("k", 13, bytes(8))], []), "unknown value type 13")
    yield BadFile(
        "value-type-huge", container([entry("k", 0xFFFFFFFF, bytes(8))], []), "unknown value type 4294967295"
    )
    yield BadFile(
        "file-ends-in-type", container([text("a_key") + b"\0\0"], [], alignment=1), "ends inside metadata key"
    )
    for kind, label in ((U16, "u16"), (U32, "u32"), (F32, "f32"), (U64, "u64"), (F64, "f64")):
        size = struct.calcsize(VALUE_FORMATS[kind])
        content = container([entry("key", kind, bytes(size - 1))], [], alignment=1)
        yield BadFile(f"file-ends-in-{label}", content, "the file ends inside metadata key 'key'")
    yield BadFile(
        "bool-2", container([entry("flag", BOOL, b"\2")], []), "'flag' holds a bool that is 2, not 0 or 1"
    )
    yield BadFile("bool-255", container([entry("flag", BOOL, b"\xff")], []), "holds a bool that is 255")
    bools = struct.pack("<IQ", BOOL, 4) + b"\0\1\3\1"
    yield BadFile("bool-in-array", container([entry("flags", ARRAY, bools)], []), "holds a bool that is 3")
    huge = struct.pack("<Q", MAX_U64 - 7)
    yield BadFile(
        "string-huge", container([entry("s", STRING, huge + b"x" * 50)], []), "metadata key 's' claims"
    )
    yield BadFile(
        "string-past-end",
        container([entry("s", STRING, struct.pack("<Q", 5000) + b"x" * 50)], []),
        "claims 5000 bytes but only",
    )
    yield BadFile(
        "string-not-utf8", container([scalar("s", STRING, b"\x80abc")], []), "holds a string that is not"
    )
    yield BadFile(
        "string-above-unicode",
        container([scalar("s", STRING, b"\xf4\x90\x80\x80")], []),
        "holds a string that is not",
    )
    yield BadFile(
        "header-above-limit",
        container([entry("s", STRING, struct.pack("<Q", 150 << 20))], [], alignment=1),
        "are left in the 48 MiB that a header may take",
        sparse_size=200 << 20,
    )


def array_cases() -> Iterator[BadFile]:
    def one(name: str, payload: bytes, expected: str, **more: int) -> BadFile:
        return BadFile(name, container([entry("list", ARRAY, payload)], [], alignment=1), expected, **more)

    yield one("array-type-13", struct.pack("<IQ", 13, 1) + bytes(8), "unknown value type 13")
    yield one("array-cut-count", struct.pack("<II", U8, 1), "the file ends inside metadata key 'list'")
    for label, kind in (("u8", U8), ("f64", F64), ("string", STRING), ("array", ARRAY)):
        payload = struct.pack("<IQ", kind, MAX_U64) + bytes(64)
        yield one(f"array-huge-{label}", payload, f"claims an array of {MAX_U64} elements")
    yield one(
        "array-size-wraps", struct.pack("<IQ", U64, (1 << 61) + 1) + bytes(64), "claims an array of 23058430"
    )
    yield one("array-one-short", struct.pack("<IQ", U32, 5) + bytes(19), "claims an array of 5 elements")
    strings = struct.pack("<IQ", STRING, 3) + text("a") + text("b") + struct.pack("<Q", 9999) + b"c"
    yield one("array-string-past-end", strings, "metadata key 'list' claims 9999 bytes")
    yield one(
        "array-string-not-utf8", array(STRING, ["a", b"\xff"]), "'list' holds a string that is not UTF-8"
    )
    yield one("array-too-deep", nested(5), "nests arrays deeper than 4 levels")
    yield one("array-very-deep", nested(50_000), "nests arrays deeper than 4 levels")
    inner = struct.pack("<IQ", ARRAY, 1) + struct.pack("<IQ", U32, 1 << 40)
    yield one("array-nested-huge", inner + bytes(64), "claims an array of 1099511627776 elements")
    yield one(
        "array-above-limit",
        struct.pack("<IQ", U8, (4 << 20) + 1),
        "brings the arrays of the file above 4194304 elements",
        sparse_size=200 << 20,
    )


def tensor_cases() -> Iterator[BadFile]:
    def one(name: str, info: bytes, expected: str, num_data: int = 4096, num_tensors: int = 1) -> BadFile:
        return BadFile(
            name, container([ARCH], [info], data=bytes(num_data), num_tensors=num_tensors), expected
        )

    yield one("tensor-no-dims", tensor("t", [], T_F32, 0), "tensor 't' has 0 dimensions; 1 to 4 are allowed")
    yield one("tensor-five-dims", tensor("t", [1, 1, 1, 1, 1], T_F32, 0), "tensor 't' has 5 dimensions")
    yield one(
        "tensor-dims-huge", tensor("t", [8], T_F32, 0, num_dims=0xFFFFFFFF), "has 4294967295 dimensions"
    )
    yield one("tensor-dim-zero", tensor("t", [32, 0], T_F32, 0), "tensor 't': dimension 1 is 0")
    yield one("tensor-dim-sign", tensor("t", [1 << 63], T_F32, 0), "dimension 0 is 9223372036854775808")
    yield one(
        "tensor-dims-overflow", tensor("t", [1 << 32, 1 << 32], T_F32, 0), "the number of elements overflows"
    )
    yield one(
        "tensor-half-the-space",
        tensor("t", [1 << 61], T_F32, 0),
        "tensor 't' needs 9223372036854775808 bytes",
    )
    yield one("tensor-bytes-wrap", tensor("t", [1 << 61, 3], T_F32, 0), "the number of bytes overflows")
    yield one(
        "tensor-type-31", tensor("t", [32], 31, 0), "tensor 't' has the tensor type 31, which plait does not"
    )
    yield one("tensor-type-4", tensor("t", [32], 4, 0), "tensor 't' has the tensor type 4")
    yield one("tensor-type-huge", tensor("t", [32], 0x80000000, 0), "has the tensor type 2147483648")
    yield one(
        "tensor-row-not-blocks", tensor("t", [33, 2], T_Q8_0, 0), "has 33 columns, not a multiple of the 32"
    )
    yield one(
        "tensor-row-not-super", tensor("t", [288], T_Q4_K, 0), "not a multiple of the 256 elements of a Q4_K"
    )
    yield one(
        "tensor-misaligned", tensor("t", [8], T_F32, 4), "offset 4 is not a multiple of the alignment 32"
    )
    yield one("tensor-past-end", tensor("t", [32], T_F32, 4096), "is it cut short?")
    yield one("tensor-too-big", tensor("t", [1025], T_F32, 0), "needs 4100 bytes at 0 of the data section")
    yield one(
        "tensor-offset-huge",
        tensor("t", [32], T_F32, MAX_U64 - 31),
        "needs 128 bytes at 18446744073709551584",
    )
    yield one(
        "tensor-offset-wraps", tensor("t", [32], T_F32, MAX_U64 - 127), "at 18446744073709551488 of the data"
    )
    yield one("tensor-no-data", tensor("t", [32], T_F32, 0), "is it cut short?", num_data=0)
    yield one("tensor-name-empty", tensor("", [8], T_F32, 0), "a tensor name is empty")
    yield one("tensor-name-long", tensor("n" * 65, [8], T_F32, 0), "has 65 bytes; the format allows 64")
    yield one("tensor-name-huge", struct.pack("<Q", MAX_U64) + bytes(80), "a tensor name claims")
    yield one(
        "tensor-name-not-utf8", tensor(b"\xfft", [8], T_F32, 0), "the tensor name '\\xfft' is not UTF-8"
    )
    yield one("tensor-name-zero-byte", tensor("a\0b", [8], T_F32, 0), "contains control characters")
    yield one(
        "tensor-twice", tensor("t", [8], T_F32, 0) + tensor("t", [8], T_F32, 32), "'t' occurs twice", 4096, 2
    )
    for label, second in (("same", 0), ("partly", 64)):
        infos = tensor("first", [32], T_F32, 0) + tensor("second", [32], T_F32, second)
        yield one(f"tensors-overlap-{label}", infos, "overlap at byte", 4096, 2)
    inside = tensor("inner", [8], T_F32, 512) + tensor("outer", [512], T_F32, 0)
    yield one("tensors-overlap-inside", inside, "tensors 'outer' and 'inner' overlap", 4096, 2)
    good = container([ARCH], [tensor("t", [32], T_F32, 0)])
    yield BadFile("cut-in-tensor-dims", good[:80], "the file ends inside tensor 't'")
    two = container([ARCH], [tensor("t", [32], T_F32, 0), tensor("u" * 60, [1, 1, 1, 1], T_F32, 128)])
    yield BadFile("cut-in-tensor-info", two[:180], "the file ends inside tensor 'uuuu")


def alignment_cases() -> Iterator[BadFile]:
    info = tensor("t", [8], T_F32, 0)
    for label, kind, value, expected in (
        ("0", U32, 0, "is 0, not a power of two"),
        ("1", U32, 1, "is 1, not a power of two from 8 up"),
        ("3", U32, 3, "is 3, not a power of two"),
        ("33", U32, 33, "is 33, not a power of two"),
        ("max", U32, 0xFFFFFFFF, "is 4294967295, not a power of two"),
        ("u64", U64, 32, "'general.alignment' is of type uint64, not uint32"),
        ("string", STRING, "32", "'general.alignment' is of type string"),
        ("2-31", U32, 1 << 31, "is it cut short?"),
    ):
        entries = [ARCH, scalar("general.alignment", kind, value)]
        yield BadFile(f"alignment-{label}", container(entries, [info], data=bytes(64)), expected)


def large_cases() -> Iterator[BadFile]:
    """Much to read before the mistake shows: time and memory stay bounded."""
    yield BadFile(
        "large-string",
        container([entry("s", STRING, struct.pack("<Q", 47 << 20))], [], num_keys=2, alignment=1),
        "a metadata key is empty",
        sparse_size=200 << 20,
    )
    empties = [entry("a", ARRAY, struct.pack("<IQ", STRING, 4 << 20))]
    yield BadFile(
        "large-array-of-empty-strings",
        container(empties, [], num_keys=2, alignment=1),
        "a metadata key is empty",
        sparse_size=200 << 20,
    )
    empties = [entry("a", ARRAY, struct.pack("<IQ", ARRAY, 4_000_000))]
    yield BadFile(
        "large-array-of-empty-arrays",
        container(empties, [], num_keys=2, alignment=1),
        "a metadata key is empty",
        sparse_size=200 << 20,
    )
    keys = [scalar("k" * 400 + f"{i:06}", U8, 0) for i in range(20_000)]
    yield BadFile("large-key-twice", container([*keys, keys[0]], []), "' occurs twice")
    infos = [tensor(f"blk.{i}", [8], T_F32, 32 * i) for i in range(65_535)]
    last = tensor("last", [8], T_F32, 32 * 65_534)
    yield BadFile(
        "large-overlap", container([ARCH], [*infos, last], data=bytes(32 * 65_536)), "and 'last' overlap"
    )


def all_cases() -> list[BadFile]:
    """Every malformed file, names unique."""
    cases: list[BadFile] = []
    for make in (
        header_cases,
        key_cases,
        value_cases,
        array_cases,
        tensor_cases,
        alignment_cases,
        large_cases,
        model_cases,
    ):
        cases += make()
    assert len({case.name for case in cases}) == len(cases)
    return cases


def good_files() -> dict[str, bytes]:
    """Well-formed files that reach every value type, several tensor types and alignments."""
    every_kind = [ARCH, scalar("b", BOOL, True), scalar("s", STRING, "\u00e9\u20ac\U0001f600")]
    every_kind += [scalar(f"n{kind}", kind, 1) for kind in VALUE_FORMATS]
    every_kind += [entry(f"l{kind}", ARRAY, array(kind, [1, 2, 3])) for kind in VALUE_FORMATS]
    every_kind += [
        entry("bools", ARRAY, array(BOOL, [True, False])),
        entry("strings", ARRAY, array(STRING, ["x", "", "yz"])),
        entry("nothing", ARRAY, array(STRING, [])),
        entry("nested", ARRAY, nested(4)),
    ]
    quantized = [
        tensor("q8", [64, 2], T_Q8_0, 0),
        tensor("q4k", [256], T_Q4_K, 192),
        tensor("h", [3], T_F16, 384),
    ]
    wide = [scalar("general.alignment", U32, 64)]
    return {
        "no-tensors": container([ARCH], []),
        "version-2": container([ARCH], [tensor("t", [8], T_F32, 0)], data=bytes(32), version=2),
        "every-kind": container(every_kind, quantized, data=bytes(512)),
        "alignment-64": container(
            wide, [tensor("t", [8, 1, 2, 3], T_F32, 64)], data=bytes(512), alignment=64
        ),
        "tiny-model": TinyModel().build(),
    }


def write_case(case: BadFile, directory: Path) -> Path:
    path = directory / f"{case.name}.gguf"
    with path.open("wb") as file:
        file.write(case.content)
        if case.sparse_size > len(case.content):
            file.truncate(case.sparse_size)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "--seeds", action="store_true", help="a fuzzing corpus: no large files, good ones too"
    )
    arguments = parser.parse_args()
    directory: Path = arguments.directory
    directory.mkdir(parents=True, exist_ok=True)
    cases = all_cases()
    if arguments.seeds:
        cases = [case for case in cases if case.sparse_size == 0 and len(case.content) < 10_000]
        for name, content in good_files().items():
            (directory / f"good-{name}.gguf").write_bytes(content)
    for case in cases:
        write_case(case, directory)
    if not arguments.seeds:
        expected = {case.name: case.expected for case in cases}
        (directory / "expected.json").write_text(json.dumps(expected, indent=2) + "\n")
    print(f"{len(cases)} malformed files in {directory}")


if __name__ == "__main__":
    main()
