"""GET /v1/models, the description of the interface, and what is not there."""

from __future__ import annotations

import openai
import pytest

from tests.fakes.fake_server import CHAT, COMPLETIONS, Served, serve_fake


def test_list_and_retrieve(shared: Served) -> None:
    (model,) = shared.openai.models.list().data
    assert (model.id, model.object, model.owned_by) == ("fake", "model", "plait")
    assert model.created > 1_700_000_000
    assert model.model_extra == {"max_model_len": 512}
    assert shared.openai.models.retrieve("fake") == model
    with pytest.raises(openai.NotFoundError):
        shared.openai.models.retrieve("other")


def test_served_name() -> None:
    with serve_fake(served_model_name="org/name:1") as talk:
        assert talk.openai.models.list().data[0].id == "org/name:1"
        assert talk.openai.models.retrieve("org/name:1").id == "org/name:1"
        reply = talk.openai.completions.create(model="org/name:1", prompt="a", max_tokens=1)
        assert reply.model == "org/name:1"
        assert talk.post(COMPLETIONS, model="fake", prompt="a").status_code == 404


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_another_model_is_404(shared: Served, path: str) -> None:
    body = {"messages": [{"role": "user", "content": "a"}]} if path == CHAT else {"prompt": "a"}
    reply = shared.post(path, model="gpt-4", **body)
    assert reply.status_code == 404
    error = reply.json()["error"]
    assert (error["param"], error["code"], error["type"]) == ("model", "model_not_found", "not_found_error")
    assert "fake" in error["message"]


def test_openapi_names_every_path(shared: Served) -> None:
    document = shared.http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    for path, item in document["paths"].items():
        for method, operation in item.items():
            reply = shared.http.request(method, path.replace("{model_id}", "fake"))
            assert reply.status_code == (200 if method == "get" else 400), path
            if method == "post":
                reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
                assert reference.rpartition("/")[2] in document["components"]["schemas"]
    assert "temperature" in document["components"]["schemas"]["ChatRequest"]["properties"]


def test_docs_page_loads_nothing_from_elsewhere(shared: Served) -> None:
    page = shared.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "http" not in page.text.replace("<!doctype html>", "").lower()
