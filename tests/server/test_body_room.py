"""What bodies that are still arriving may take together, and bodies that are not read at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from plait.server.body import BodyRoom, read_body
from plait.server.errors import HttpError
from tests.fakes.fake_server import COMPLETIONS, Served


def test_bodies_share_one_room_and_give_it_back() -> None:
    async def run() -> None:
        room = BodyRoom(1000)
        parts: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

        def read(receive: Any) -> Any:
            return read_body(receive, [], max_bytes=900, timeout_s=5, room=room)

        slow = asyncio.ensure_future(read(parts.get))
        parts.put_nowait({"type": "http.request", "body": b"a" * 800, "more_body": True})
        while room.num_bytes < 800:
            await asyncio.sleep(0)

        async def large() -> dict[str, Any]:
            return {"type": "http.request", "body": b"b" * 300, "more_body": False}

        with pytest.raises(HttpError) as caught:
            await read(large)
        assert caught.value.status == 503
        assert caught.value.retry_after_s
        assert room.num_bytes == 800
        parts.put_nowait({"type": "http.request", "body": b"a", "more_body": False})
        assert await slow == b"a" * 801
        assert room.num_bytes == 0
        assert await read(large) == b"b" * 300
        assert room.num_bytes == 0

    asyncio.run(run())


def test_a_compressed_body_is_refused_by_name(fake: Served) -> None:
    reply = fake.http.post(COMPLETIONS, content=b"\x1f\x8b\x08", headers={"content-encoding": "gzip"})
    assert reply.status_code == 415
    assert "Compressed" in reply.json()["error"]["message"]
    plain = fake.http.post(COMPLETIONS, json={"prompt": "a"}, headers={"content-encoding": "identity"})
    assert plain.status_code == 200
