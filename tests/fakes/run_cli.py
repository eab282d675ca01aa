"""A command of plait in this process."""

from __future__ import annotations

import pytest

from plait.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr)"""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    out, err = capsys.readouterr()
    code = caught.value.code
    assert code is None or isinstance(code, int)
    return code or 0, out, err
