"""Clients share by their address; nothing that they send changes whose share they use."""

from __future__ import annotations

import httpx
import pytest

from tests.fakes.fake_server import CHAT, COMPLETIONS, Served


def tenants(talk: Served, source: str, **headers: str) -> set[str]:
    """Of requests from the address ``source`` to both endpoints."""
    before = len(talk.client.requests)
    with httpx.Client(
        base_url=talk.url, headers=headers, transport=httpx.HTTPTransport(local_address=source)
    ) as client:
        message = {"role": "user", "content": "a"}
        for path, body in (
            (COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 1, "user": source}),
            (CHAT, {"messages": [message], "max_tokens": 1, "user": source, "prompt_cache_key": source}),
        ):
            assert client.post(path, json=body).status_code == 200
    requests = talk.client.requests[before:]
    assert len(requests) == 3
    return {request.tenant for request in requests}


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
def test_a_tenant_is_an_address(shared: Served, source: str) -> None:
    assert tenants(shared, source) == {source}


def test_headers_do_not_change_the_tenant(shared: Served) -> None:
    lies = {
        "x-forwarded-for": "10.0.0.1",
        "forwarded": "for=10.0.0.1",
        "x-real-ip": "10.0.0.1",
        "authorization": "Bearer other",
    }
    assert tenants(shared, "127.0.0.1", **lies) == {"127.0.0.1"}
