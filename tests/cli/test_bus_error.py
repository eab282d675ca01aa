"""A file that loses bytes while it is mapped ends a command with a sentence, not with silence."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import mmap, sys
from plait import _native
_native.explain_bus_errors()
with open(sys.argv[1], "r+b") as file:
    view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    file.truncate(0)
    print(view[0])
"""


def test_a_bus_error_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(8192))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGBUS
    assert done.stderr.startswith("plait: a file that is in use")
    assert done.stderr.count("\n") == 1
