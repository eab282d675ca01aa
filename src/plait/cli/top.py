"""plait top"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from plait.cli.watch.frame import Frame
    from plait.cli.watch.source import Look, Source

_HISTORY = 600


def top(
    url: Annotated[str, typer.Argument(help="Address of a running server.")] = "http://127.0.0.1:8000",
    interval_s: Annotated[
        float, typer.Option("--interval", min=0.05, max=3600.0, help="Seconds between two looks.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame, after one interval.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print frames as JSON, one a line.")] = False,
) -> None:
    """Watch a running server: requests, steps, latencies, KV cache, threads. Ctrl-C ends it."""
    from plait.cli.watch.source import Source

    watch = _Watch(Source(url))
    try:
        watch.begin()
        if once or as_json or not sys.stdout.isatty():
            _print_frames(watch, interval_s, once=once, as_json=as_json)
        else:
            _show_live(watch, interval_s)
    except KeyboardInterrupt:
        return


class _Watch:
    """Looks at one server again and again."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.frames: list[Frame] = []
        self.problem = ""
        self._pid: int | None = None
        self._last: Look | None = None

    def begin(self) -> None:
        """The first look. Raises NoAnswerError."""
        from plait.cli.watch.threads import find_server

        self._pid = find_server(self.source.url)
        self._last = self._look()

    def go_on(self) -> Frame:
        """The next look. Raises NoAnswerError."""
        from plait.cli.watch.frame import make_frame

        now = self._look()
        frame = make_frame(self._last, now)
        self._last = now
        self.frames = [*self.frames[-_HISTORY:], frame]
        return frame

    def _look(self) -> Look:
        from dataclasses import replace

        from plait.cli.watch.threads import find_server, read_threads

        look = self.source.look()
        threads = read_threads(self._pid) if self._pid is not None else {}
        if not threads:
            # It may have been started again.
            self._pid = find_server(self.source.url)
            threads = read_threads(self._pid) if self._pid is not None else {}
        return replace(look, thread_cpu_s=threads)


def _ticks(interval_s: float) -> Iterator[None]:
    """One for each interval, without drift."""
    due = time.monotonic()
    while True:
        due = max(due + interval_s, time.monotonic())
        time.sleep(max(due - time.monotonic(), 0.0))
        yield


def _print_frames(watch: _Watch, interval_s: float, *, once: bool, as_json: bool) -> None:
    """Until the server is gone, which is an error as it is at the beginning."""
    from rich.console import Console

    from plait.cli.watch.view import draw

    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, 110))
    for _ in _ticks(interval_s):
        frame = watch.go_on()
        if as_json:
            print(json.dumps({"url": watch.source.url, **asdict(frame)}), flush=True)
        else:
            console.print(draw(watch.source.url, watch.frames))
        if once:
            return


def _show_live(watch: _Watch, interval_s: float) -> None:
    """A server that goes away may come back: the last frame stays, with what is wrong."""
    from rich.console import Console
    from rich.live import Live

    from plait.cli.watch.source import NoAnswerError
    from plait.cli.watch.view import draw

    url = watch.source.url
    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        watch.go_on()
        live.update(draw(url, watch.frames), refresh=True)
        for _ in _ticks(interval_s):
            problem = ""
            try:
                watch.go_on()
            except NoAnswerError as error:
                problem = str(error)
            live.update(draw(url, watch.frames, problem), refresh=True)
