"""Nothing shows the value of a secret setting, however it was given and whatever is wrong with it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from plait.config import PlaitConfig, ServerConfig, load_config
from plait.config.load import all_fields
from plait.config.model import SECTIONS
from plait.config.values import MASK
from plait.errors import ConfigError

SECRETS = [
    place for place in all_fields() if place.section and place.name in SECTIONS[place.section].secret_fields()
]
KEY = "s3cr3tvalue"


def test_the_api_key_is_a_secret() -> None:
    assert [place.key for place in SECRETS] == ["server.api_key"]


@pytest.mark.parametrize(
    "text",
    [
        "server: {api_key: 83650194}",
        "server: {api_key: 836.50194}",
        "server: {api_key: [83650194, s3cr3tvalue]}",
        "server: {api_key: {s3cr3tvalue: s3cr3tvalue}}",
        "server: {api_key: {value: s3cr3tvalue}}",
        "server: {api_key: 2024-99-99}",
        "server: {api_key: 2024-11-12}",
        'server: {api_key: "s3cr3tvalue\\n"}\nserver2: 1',
        'server: {api_key: "s3cr3t\\0value"}',
        "server:\n  api_key:s3cr3tvalue",
        "server: {api_key:s3cr3tvalue}",
        "server: {api_key=s3cr3tvalue: 1}",
        "server: [api_key, s3cr3tvalue]",
        "server: 83650194",
        "api_key:s3cr3tvalue",
        "- s3cr3tvalue",
        'server: {api_key: "s3cr3tvalue}',
        "server: {api_key: s3cr3tvalue",
        "server: {api_key: *s3cr3tvalue}",
        "server: {api_key: !s3cr3tvalue x}",
        "server: {api_key: !!binary s3cr3tvalue}",
        'server: {api_key: "\\s3cr3tvalue"}',
        "server: {api_key: @s3cr3tvalue}",
        "server: {api_key: s3cr3tvalue: x}",
        "api_key: s3cr3tvalue",
        "model: 3\nserver: {api_key: s3cr3tvalue}",
        "engine: {max_batch_size: 600}\nserver: {api_key: s3cr3tvalue}",
    ],
)
def test_errors_of_files_do_not_show_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file=file)
    for secret in (KEY, "s3cr3t", "83650194", "836.5", "2024"):
        assert secret not in str(caught.value)
        assert secret not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize("value", [KEY + "\0", KEY * 1000, 83650194, b"s3cr3tvalue", [KEY], {KEY: KEY}])
def test_errors_of_flags_and_variables_do_not_show_it(value: Any) -> None:
    for place in SECRETS:
        sources: list[dict[str, Any]] = [{"overrides": {place.name: value}}]
        if isinstance(value, str):
            sources.append({"environment": {place.variable: value}})
        for source in sources:
            if value == b"s3cr3tvalue":
                assert load_config(**source).server.api_key == KEY
                continue
            with pytest.raises(ConfigError) as caught:
                load_config(**source)
            assert "s3cr3t" not in str(caught.value)
            assert "83650194" not in str(caught.value)
            assert MASK in str(caught.value)


def test_errors_of_the_model_do_not_show_it() -> None:
    for wrong in ({"api_key": 83650194}, {"api_key": [KEY]}, {"api_key": KEY + "\0"}, {"api_keyy": KEY}):
        with pytest.raises(ValidationError) as caught:
            ServerConfig(**wrong)
        assert "s3cr3t" not in str(caught.value)
        assert "83650194" not in str(caught.value)


def test_no_form_of_the_configuration_shows_it() -> None:
    config = load_config(overrides={"api_key": KEY})
    for model in (config, config.server, config.model_copy(update={"model": "x"})):
        assert "api_key" in repr(model)
        for text in (
            repr(model),
            str(model),
            f"{model}",
            model.model_dump_json(),
            json.dumps(model.model_dump()),
        ):
            assert KEY not in text
            assert MASK in text


def test_it_is_still_there_for_the_server() -> None:
    server = load_config(environment={"PLAIT_API_KEY": KEY}).server
    assert server.api_key == KEY
    assert server.model_copy(update={"port": 1}).api_key == KEY
    assert pickle.loads(pickle.dumps(server)).api_key == KEY
    assert PlaitConfig(server=server).server.api_key == KEY
    assert ServerConfig().model_dump()["api_key"] is None
