"""GET /openapi.json and /docs: made when asked for, without anything from the network."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec

import plait
from plait.server.endpoint import Call
from plait.server.replies import ChatChoice, CompletionChoice, Reply, encode
from plait.server.requests import (
    REQUEST_KINDS,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

REPLIES: dict[str, Any] = {
    "/v1/chat/completions": Reply[ChatChoice],
    "/v1/completions": Reply[CompletionChoice],
}

OPERATIONS: tuple[tuple[str, str, str, type[msgspec.Struct] | None], ...] = (
    ("post", "/v1/chat/completions", "Answer a chat, whole or as server-sent events", ChatRequest),
    ("post", "/v1/completions", "Continue prompts, whole or as server-sent events", CompletionRequest),
    ("get", "/v1/models", "The models that are served", None),
    ("get", "/v1/models/{model_id}", "One model", None),
    ("post", "/tokenize", "Text or a chat to token ids", TokenizeRequest),
    ("post", "/detokenize", "Token ids to text", DetokenizeRequest),
    ("get", "/health", "200 when live, ready and in progress", None),
    ("get", "/health/live", "200 while the engine lives", None),
    ("get", "/health/ready", "200 when loaded, warm and not draining", None),
    ("get", "/health/progress", "503 when work waits and no step ends", None),
    ("get", "/metrics", "Prometheus text", None),
)

ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

DOCS_PAGE = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>plait API</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
summary{cursor:pointer;padding:.4rem 0}code{font-weight:bold}td,th{text-align:left;padding:.1rem 1rem .1rem 0}
.m{display:inline-block;width:4rem;text-transform:uppercase;color:#06c}</style>
<h1>plait API</h1><p>Machine-readable: <a href="openapi.json">openapi.json</a></p><main></main>
<script>
const el = (tag, text, parent) => {
  const node = document.createElement(tag); node.textContent = text; parent.append(node); return node; };
const kind = (s) => s.$ref ? s.$ref.split("/").pop() : s.anyOf ? s.anyOf.map(kind).join(" | ")
  : s.type === "array" ? "list of " + kind(s.items || {}) : s.type || "any";
fetch("openapi.json").then((reply) => reply.json()).then((doc) => {
  for (const [path, item] of Object.entries(doc.paths)) for (const [method, op] of Object.entries(item)) {
    const box = el("details", "", document.querySelector("main")), head = el("summary", "", box);
    el("span", method, head).className = "m"; el("code", path, head); el("span", " " + op.summary, head);
    const body = op.requestBody && op.requestBody.content["application/json"].schema.$ref;
    if (!body) continue;
    const schema = doc.components.schemas[body.split("/").pop()], table = el("table", "", box);
    for (const [name, field] of Object.entries(schema.properties)) {
      const row = el("tr", "", table); el("td", name, row); el("td", kind(field), row);
      el("td", (schema.required || []).includes(name) ? "required" : "", row); } } });
</script></html>"""


@lru_cache(maxsize=1)
def _document() -> bytes:
    kinds = (*REQUEST_KINDS, *REPLIES.values())
    references, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    replies = dict(zip(REPLIES, references[len(REQUEST_KINDS) :], strict=True))
    schemas["Error"] = ERROR_SCHEMA
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    paths: dict[str, dict[str, Any]] = {}
    for method, path, summary, kind in OPERATIONS:
        success: dict[str, Any] = {"description": "Success"}
        if path in replies:
            success["content"] = {"application/json": {"schema": replies[path]}}
        operation: dict[str, Any] = {
            "summary": summary,
            "responses": {"200": success, "default": {"description": "Error", **error}},
        }
        if kind is not None:
            reference = {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}
            operation["requestBody"] = {"required": True, "content": {"application/json": reference}}
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"\{(\w+)\}", path)
        ]
        paths.setdefault(path, {})[method] = operation
    return encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "plait", "version": plait.__version__},
            "paths": paths,
            "components": {"schemas": schemas},
        }
    )


async def handle_openapi(call: Call) -> None:
    await call.reply(200, _document(), [(b"content-type", b"application/json")])


async def handle_docs(call: Call) -> None:
    await call.reply(200, DOCS_PAGE, [(b"content-type", b"text/html; charset=utf-8")])
