"""The weight cache: found again, never wrong, never in the way of a start."""

from __future__ import annotations

import fcntl
import logging
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import gguf_builder as build
import pytest

from plait.weights import identity, packed
from plait.weights.cache_folder import CacheError, CacheFolder, default_folder, note_name, packed_name
from plait.weights.gguf import GgufFile
from plait.weights.loader import LoadedWeights, load_weights
from plait.weights.packed import CacheSettings

GIB = 1 << 30
MATRICES = ["embedding", "up", "down", "embedding"]
VECTORS = ["norm", "last_norm"]
SHAPES = {"embedding": [64, 512], "up": [64, 4096], "down": [4096, 64], "norm": [64], "last_norm": [64]}


def write_model(path: Path, seed: int = 1) -> Path:
    """A file with a few float32 tensors, 2.2 MB."""
    draw = random.Random(seed)
    infos, data = [], b""
    for name, shape in SHAPES.items():
        infos.append(build.tensor(name, shape, build.T_F32, len(data)))
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        data += struct.pack(f"<{count}f", *(draw.random() for _ in range(count)))
    path.write_bytes(build.container([], infos, data=data))
    return path


@pytest.fixture(scope="module")
def model_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_model(tmp_path_factory.mktemp("model") / "model.gguf").read_bytes()


@pytest.fixture
def model(tmp_path: Path, model_bytes: bytes) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(model_bytes)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as old the moment they are written."""
    monkeypatch.setattr(identity, "SETTLED_NS", -1 << 60)


@pytest.fixture
def digests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Digests that were computed, in order."""
    computed: list[str] = []
    original = identity.content_digest

    def spy(file: GgufFile, num_threads: int) -> str:
        computed.append(original(file, num_threads))
        return computed[-1]

    monkeypatch.setattr(identity, "content_digest", spy)
    return computed


def load(path: Path, folder: Path | None, max_bytes: int = GIB) -> LoadedWeights:
    cache = None if folder is None else CacheSettings(folder, max_bytes)
    return load_weights(GgufFile(path), MATRICES, VECTORS, isa="scalar", num_threads=2, cache=cache)


def packed_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.packed"))


def expect_right(loaded: LoadedWeights, path: Path) -> None:
    """The vectors are those of the file; the matrices stand at the same places as without a cache."""
    plain = load(path, None)
    assert (loaded.matrices, loaded.is_float) == (plain.matrices, plain.is_float)
    for name, vector_id in loaded.vectors.items():
        assert loaded.native.vector_values(vector_id) == plain.native.vector_values(plain.vectors[name])


def test_the_second_start_finds_what_the_first_packed(model: Path, folder: Path) -> None:
    first, second = load(model, folder), load(model, folder)
    assert (first.was_packed, second.was_packed) == (True, False)
    expect_right(first, model)
    expect_right(second, model)
    assert len(packed_files(folder)) == 1
    assert folder.stat().st_mode & 0o777 == 0o700
    assert not list(folder.glob("*.tmp"))


def test_without_a_cache_nothing_is_written(model: Path, folder: Path) -> None:
    loaded = load(model, None)
    assert loaded.was_packed
    assert not loaded.is_shared
    assert not folder.exists()


def test_a_table_that_is_named_twice_is_packed_last(model: Path, folder: Path) -> None:
    assert load(model, None).matrices == {"up": 0, "down": 1, "embedding": 2}
    load(model, folder)
    key = packed_files(folder)[0].read_bytes()[64:].split(b"\n")
    assert [line.split()[1] for line in key if line.startswith(b"matrix")] == [b"up", b"down", b"embedding"]


def test_another_content_of_the_same_size_is_packed_anew(model: Path, folder: Path, settled: None) -> None:
    load(model, folder)
    times = model.stat()
    with model.open("r+b") as file:  # one byte in the middle of a tensor, no sample sees it
        file.seek(1_234_567)
        byte = file.read(1)[0]
        file.seek(1_234_567)
        file.write(bytes([byte ^ 1]))
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert model.stat().st_mtime_ns == times.st_mtime_ns
    changed = load(model, folder)
    assert changed.was_packed
    expect_right(changed, model)
    assert len(packed_files(folder)) == 2


def test_another_file_in_its_place_is_packed_anew(
    model: Path, folder: Path, tmp_path: Path, settled: None
) -> None:
    load(model, folder)
    other = write_model(tmp_path / "other.gguf", seed=2)
    os.utime(other, ns=(model.stat().st_atime_ns, model.stat().st_mtime_ns))
    os.replace(other, model)
    replaced = load(model, folder)
    assert replaced.was_packed
    expect_right(replaced, model)


def test_a_copy_shares_the_packed_file(model: Path, folder: Path, tmp_path: Path) -> None:
    load(model, folder)
    copy = tmp_path / "elsewhere.gguf"
    shutil.copyfile(model, copy)
    assert not load(copy, folder).was_packed
    assert len(packed_files(folder)) == 1


def test_the_content_is_read_once(model: Path, folder: Path, settled: None, digests: list[str]) -> None:
    for _ in range(3):
        load(model, folder)
    assert len(digests) == 1
    os.utime(model)
    assert not load(model, folder).was_packed
    assert len(digests) == 2  # its stamp is new, its content is not


def test_a_file_that_has_just_changed_is_read_every_time(
    model: Path, folder: Path, digests: list[str]
) -> None:
    for _ in range(2):
        load(model, folder)
    assert len(digests) == 2
    assert not list(folder.glob("*.source"))


@pytest.mark.parametrize("damage", ["digest", "check", "sample", "cut", "empty", "binary"])
def test_a_damaged_note_leads_nowhere(
    model: Path, folder: Path, settled: None, digests: list[str], damage: str
) -> None:
    load(model, folder)
    (note,) = folder.glob("*.source")
    lines = note.read_text().splitlines(keepends=True)
    line = {"sample": 2, "digest": 3, "check": 4}.get(damage)
    if line is not None:
        lines[line] = ("1" if lines[line][0] == "0" else "0") + lines[line][1:]
    content = {"cut": "".join(lines)[:-30], "empty": "", "binary": "\udcff"}.get(damage, "".join(lines))
    note.write_bytes(content.encode(errors="surrogateescape"))
    assert not load(model, folder).was_packed
    assert len(digests) == 2


@pytest.mark.parametrize("suffix", ["", ".tmp"])
def test_a_folder_in_place_of_a_note_is_told_by_its_path(
    model: Path,
    folder: Path,
    settled: None,
    digests: list[str],
    suffix: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The packed file is used all the same, as beside any other note that is none."""
    load(model, folder)
    (note,) = folder.glob("*.source")
    note.unlink()
    wrong = note.with_name(note.name + suffix)
    wrong.mkdir()
    num_open = len(os.listdir("/proc/self/fd"))
    with caplog.at_level(logging.WARNING):
        again = load(model, folder)
    assert not again.was_packed
    expect_right(again, model)
    assert len(digests) == 2
    (record,) = caplog.records
    assert f"{wrong} is a folder" in record.getMessage()
    assert "remove it" in record.getMessage()
    del again
    assert len(os.listdir("/proc/self/fd")) <= num_open
    wrong.rmdir()
    load(model, folder)
    load(model, folder)
    assert len(digests) == 3


def test_a_note_is_believed_only_with_its_samples(model: Path, folder: Path, settled: None) -> None:
    """What a file system without times of change would do: the stamp stays, the content does not."""
    file = GgufFile(model)
    with CacheFolder(folder) as opened:
        digest = identity.source_digest(file, opened, 1)
        stamp = file.stamp
        other = GgufFile(write_model(model.with_name("other.gguf"), seed=3))
        (note,) = folder.glob("*.source")
        note.rename(folder / note_name(identity.hashlib.sha256(repr(other.stamp).encode()).hexdigest()))
        assert identity.source_digest(other, opened, 1) != digest
        assert stamp == file.stamp


@pytest.mark.parametrize(
    "damage", ["flip head", "flip key", "flip data", "cut", "grown", "empty", "link", "mode", "owner"]
)
def test_a_damaged_file_is_written_anew(
    model: Path, folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    load(model, folder)
    (path,) = packed_files(folder)
    whole = path.read_bytes()
    content = bytearray(whole)
    if damage.startswith("flip"):
        content[{"flip head": 13, "flip key": 90, "flip data": len(content) - 4321}[damage]] ^= 16
        path.write_bytes(content)
    elif damage in ("cut", "grown", "empty"):
        path.write_bytes({"cut": whole[:-1], "grown": whole + b"\0", "empty": b""}[damage])
    elif damage == "link":
        path.rename(folder / "elsewhere")
        path.symlink_to(folder / "elsewhere")
    elif damage == "mode":
        path.chmod(0o666)
    elif os.geteuid() != 0:
        pytest.skip("only root can give files away")
    else:
        os.chown(path, 12345, -1)
    with caplog.at_level(logging.WARNING):
        again = load(model, folder)
    assert again.was_packed
    assert "written anew" in caplog.text
    expect_right(again, model)
    assert path.read_bytes() == whole
    assert not path.is_symlink()
    assert not load(model, folder).was_packed


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_may_write_to_is_not_used(
    model: Path, folder: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with caplog.at_level(logging.WARNING):
        loaded = load(model, folder)
    assert loaded.was_packed
    assert not loaded.is_shared
    assert len(caplog.records) == 1
    assert "others" in caplog.text or "other users" in caplog.text
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_none_is_a_warning(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        expect_right(load(model, tmp_path / "file" / "cache"), model)
    assert len(caplog.records) == 1


def run_python(code: str, *arguments: str) -> list[str]:
    """The lines that a fresh process prints."""
    program = f"import sys, logging\nlogging.basicConfig(level=logging.WARNING)\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


LOAD = """
from pathlib import Path
from plait.weights.gguf import GgufFile
from plait.weights.loader import load_weights
from plait.weights.packed import CacheSettings
file = GgufFile(sys.argv[1])
cache = CacheSettings(Path(sys.argv[2]), 1 << 30)
BEFORE
loaded = load_weights(file, ["embedding", "up", "down"], ["norm"], isa="scalar", num_threads=1, cache=cache)
print(loaded.was_packed, loaded.is_shared)
"""


def test_a_full_disk_is_a_warning(model: Path, folder: Path) -> None:
    """A bound on file sizes stands in for it: the system refuses in the same places."""
    before = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, {resource.RLIM_INFINITY}))"
    )
    lines = run_python(LOAD.replace("BEFORE", before), str(model), str(folder))
    assert lines[0] == "True False"
    assert sum("weight cache is not used" in line for line in lines) == 1
    assert packed_files(folder) == []
    assert not list(folder.glob("*.tmp"))


def test_a_read_only_folder_is_a_warning_but_can_be_read(model: Path, tmp_path: Path) -> None:
    before = "import os\nif os.geteuid() == 0: os.seteuid(65534)"
    code = LOAD.replace("BEFORE", before)
    # Where everybody may look; a folder of root's is trusted.
    folder = Path("/tmp") / f"plait-read-only-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        folder.chmod(0o555)
        lines = run_python(code, str(model), str(folder))
        assert lines[0] == "True False"
        assert sum("weight cache is not used" in line for line in lines) == 1
        folder.chmod(0o755)
        run_python(LOAD.replace("BEFORE", ""), str(model), str(folder))
        for file in folder.iterdir():
            file.chmod(0o444)
        folder.chmod(0o555)
        assert run_python(code, str(model), str(folder))[0].startswith("False")
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_of_processes_that_start_at_once_one_packs(model: Path, folder: Path) -> None:
    begin = time.time() + 2
    before = f"import time; time.sleep(max(0, {begin} - time.time()))"
    program = f"import sys\n{LOAD.replace('BEFORE', before)}"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(model), str(folder)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(5)
    ]
    answers = [child.communicate(timeout=60)[0].split()[0] for child in children]
    assert all(child.returncode == 0 for child in children)
    assert sorted(answers) == ["False"] * 4 + ["True"]
    assert [path.suffix for path in folder.iterdir()] == [".packed"]


def test_a_writer_that_does_not_get_on_is_not_waited_for(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(packed, "STALLED_AFTER_S", 0.1)
    load(model, folder)
    (path,) = packed_files(folder)
    path.unlink()
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w") as held, caplog.at_level(logging.WARNING):
        fcntl.flock(held, fcntl.LOCK_EX)
        loaded = load(model, folder)
        assert loaded.was_packed
        assert not loaded.is_shared
        assert "another process packs these weights" in caplog.text
        assert temporary.exists()
    assert load(model, folder).was_packed
    assert [p.suffix for p in folder.iterdir()] == [".packed"]


def test_a_model_that_changes_while_it_is_packed_is_not_kept(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = packed._wait_for_turn

    def touch_first(*arguments: object) -> object:
        os.utime(model)
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(packed, "_wait_for_turn", touch_first)
    with caplog.at_level(logging.WARNING):
        expect_right(load(model, folder), model)
    assert "changed while it was read" in caplog.text
    assert packed_files(folder) == []


def test_what_killed_writers_left_is_removed(model: Path, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    stale = [folder / f"plait-{'0' * 32}.packed.tmp", folder / f"plait-{'1' * 32}.source.tmp"]
    live = folder / f"plait-{'2' * 32}.packed.tmp"
    foreign = [folder / "notes.tmp", folder / "my.packed", folder / "plait-notes.packed.tmp"]
    for path in (*stale, live, *foreign):
        path.write_text("x")
    with live.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        load(model, folder)
        assert not any(path.exists() for path in stale)
        assert all(path.exists() for path in (live, *foreign))


def test_the_folder_keeps_what_was_used_last(tmp_path: Path, folder: Path) -> None:
    models = [write_model(tmp_path / f"{seed}.gguf", seed) for seed in range(4)]
    paths: list[Path] = []
    for at, path in enumerate(models):
        load(path, folder)
        (new,) = set(packed_files(folder)) - set(paths)
        os.utime(new, (at, at))
        paths.append(new)
    size = paths[0].stat().st_size
    load(models[0], folder)  # now 1 was used longest ago, then 2
    in_use = load(models[1], folder)
    os.utime(paths[1], (1, 1))
    load(models[0], folder, max_bytes=2 * size)
    assert {path for path in paths if path.exists()} == {paths[0], paths[1]}
    load(models[0], folder, max_bytes=size)
    assert paths[1].exists()
    del in_use
    load(models[0], folder, max_bytes=size)
    assert packed_files(folder) == [paths[0]]


def test_a_model_larger_than_the_bound_is_not_kept(
    model: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        expect_right(load(model, folder, max_bytes=1000), model)
    assert "weight_cache_bytes" in caplog.text
    assert packed_files(folder) == []


def test_notes_are_bounded(folder: Path) -> None:
    with CacheFolder(folder) as opened:
        for i in range(300):
            opened.write_note(note_name(f"{i:032x}"), "x")
            os.utime(folder / note_name(f"{i:032x}"), (i, i))
        opened.trim(GIB)
    names = sorted(path.name for path in folder.iterdir())
    assert names == [note_name(f"{i:032x}") for i in range(44, 300)]


def test_where_the_folder_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PLAIT_CACHE_DIR", str(tmp_path / "chosen"))
    assert default_folder() == tmp_path / "chosen"
    monkeypatch.delenv("PLAIT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "plait" / "packed"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_folder() == tmp_path / "home" / ".cache" / "plait" / "packed"


def test_names_of_cache_files_are_told_apart(folder: Path) -> None:
    assert packed_name("a" * 64) == f"plait-{'a' * 32}.packed"
    folder.mkdir()
    folder.chmod(0o500)
    with CacheFolder(folder) as opened:
        assert opened.stat("nothing") is None
        assert opened.read_note("nothing") is None
    if os.geteuid() == 0:
        os.chown(folder, 12345, -1)
        with pytest.raises(CacheError, match="belongs to user 12345"):
            CacheFolder(folder)
