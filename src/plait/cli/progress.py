"""A progress bar for pulls, on stderr; plain lines where stderr is no terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from plait.weights.pull import PullProgress


class PullBar:
    """Appears with the first update, so that a model that is already here shows nothing."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._shown_phase = ""

    def update(self, progress: PullProgress) -> None:
        # What the hub's package draws itself would disturb a bar.
        if not sys.stderr.isatty() or progress.total_bytes == 0:
            if progress.phase != self._shown_phase:
                self._shown_phase = progress.phase
                print(f"{progress.name}: {progress.phase}", file=sys.stderr)
            return
        if self._progress is None:
            self._progress = _make_bar()
            self._progress.start()
            self._task = self._progress.add_task(progress.name, total=progress.total_bytes)
        assert self._task is not None
        self._progress.update(
            self._task,
            description=f"{progress.name}: {progress.phase}",
            completed=progress.done_bytes,
            total=progress.total_bytes,
        )

    def __enter__(self) -> PullBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()


def _make_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, console=Console(stderr=True))
