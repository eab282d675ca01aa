"""Every setting has limits: a value out of them is an error that names the setting, from wherever it comes.

The settings are those of the models themselves, so that a new one is tested too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from plait.config import EngineConfig, load_config
from plait.config.engine import BLOCK_TOKENS
from plait.config.load import FieldPlace, all_fields, field_info
from plait.errors import ConfigError


def kind_of(place: FieldPlace) -> type:
    annotation: Any = field_info(place).annotation
    if get_origin(annotation) is Literal:
        return str
    while not isinstance(annotation, type):
        annotation = next(argument for argument in get_args(annotation) if argument is not type(None))
    return annotation


PLACES = all_fields()
NUMBERS = [place for place in PLACES if kind_of(place) in (int, float)]
TEXTS = [place for place in PLACES if kind_of(place) is str]
SIZES = [place for place in PLACES if place.name.endswith("_bytes")]
HUGE = [2**31, 2**63, 2**64, 10**18, 10**30, 10**400, 10**5000]


def load(place: FieldPlace, value: object, source: str, tmp_path: Path) -> object:
    """The setting's value in the configuration that has it from that source."""
    # Values that only fit together are another test's.
    others = {} if place.name == "max_batch_tokens" else {"max_batch_tokens": 65536}
    others |= {"max_batch_size": 1} if place.name == "max_batch_tokens" else {}
    # Python writes no integers of thousands of digits in decimal.
    text = hex(value) if isinstance(value, int) and value.bit_length() > 10_000 else str(value)
    if source == "flag":
        config = load_config(overrides={**others, place.name: text})
    elif source == "variable":
        config = load_config(environment={place.variable: text}, overrides=others)
    elif source == "argument":
        config = load_config(overrides={**others, place.name: value}, spell=lambda known: known.name)
    else:
        file = tmp_path / "c.yaml"
        head = "" if place.section is None else f"{place.section}: "
        file.write_text(head + f"{{{place.name}: {text}}}")
        config = load_config(file=file, overrides=others)
    return getattr(config if place.section is None else getattr(config, place.section), place.name)


def shown(place: FieldPlace, source: str) -> str:
    return {"flag": place.flag, "variable": place.variable, "argument": place.name, "file": place.key}[source]


@pytest.mark.parametrize("source", ["flag", "variable", "argument", "file"])
@pytest.mark.parametrize("place", NUMBERS, ids=lambda place: place.key)
def test_numbers_out_of_bounds_name_the_setting(place: FieldPlace, source: str, tmp_path: Path) -> None:
    for value in [*HUGE, -1, -(2**63), -(10**30), *([1e308, -0.5] if kind_of(place) is float else [])]:
        if place.name == "seed" and value in (2**31, 2**63, 10**18):
            continue  # seeds have 64 bits
        if (
            place.name in ("kv_cache_bytes", "kv_prefault_bytes", "kv_swap_bytes", "weight_cache_bytes")
            and value == 2**31
        ):
            continue
        with pytest.raises(ConfigError) as caught:
            load(place, value, source, tmp_path)
        assert shown(place, source) in str(caught.value)
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("place", NUMBERS, ids=lambda place: place.key)
def test_zero_is_a_value_or_an_error_that_names_the_setting(place: FieldPlace, tmp_path: Path) -> None:
    limits = [getattr(m, name, None) for m in field_info(place).metadata for name in ("ge", "gt")]
    if 0 in [getattr(m, "ge", None) for m in field_info(place).metadata]:
        assert load(place, 0, "flag", tmp_path) == 0
        return
    assert any(limit is not None for limit in limits)
    with pytest.raises(ConfigError, match=f"^{place.flag}: '0' is wrong: must be (at least|more than) "):
        load(place, 0, "flag", tmp_path)


@pytest.mark.parametrize("place", NUMBERS, ids=lambda place: place.key)
def test_bounds_themselves_are_taken(place: FieldPlace, tmp_path: Path) -> None:
    for bound in ("ge", "le"):
        limit = next((getattr(m, bound) for m in field_info(place).metadata if hasattr(m, bound)), None)
        if limit is not None and place.name != "block_tokens":
            assert load(place, limit, "flag", tmp_path) == limit


@pytest.mark.parametrize("place", TEXTS, ids=lambda place: place.key)
@pytest.mark.parametrize(
    "value", ["", "x" * 100_000, "a\0b", "a\nb"], ids=["empty", "long", "nul", "newline"]
)
def test_texts_out_of_bounds_name_the_setting(place: FieldPlace, value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(place, value, "flag", tmp_path)
    assert str(caught.value).startswith(f"{place.flag}: ")
    assert len(str(caught.value)) < 500


def test_there_are_such_settings() -> None:
    assert len(NUMBERS) >= 18
    assert len(TEXTS) >= 4
    assert len(SIZES) >= 2


@pytest.mark.parametrize("place", SIZES, ids=lambda place: place.key)
def test_sizes_take_units(place: FieldPlace, tmp_path: Path) -> None:
    for source in ("flag", "variable", "argument", "file"):
        assert load(place, "8MiB", source, tmp_path) == 8 << 20
        assert load(place, 8 << 20, source, tmp_path) == 8 << 20


@pytest.mark.parametrize("tokens", [*BLOCK_TOKENS, 1, 8, 17, 48, 1024])
def test_block_tokens_are_what_the_kernels_take(tokens: int, tmp_path: Path) -> None:
    place = next(place for place in PLACES if place.name == "block_tokens")
    if tokens in BLOCK_TOKENS:
        assert load(place, tokens, "flag", tmp_path) == tokens
        return
    with pytest.raises(
        ConfigError, match=r"^--block-tokens: '\d+' is wrong: must be (one of 16|at most 1024)"
    ):
        load(place, tokens, "flag", tmp_path)


def test_the_kernels_take_the_same_block_tokens() -> None:
    start = pytest.importorskip("plait.engine.start")
    assert start.BLOCK_TOKENS == BLOCK_TOKENS


def test_a_context_of_one_token_is_the_setting_s_fault(tmp_path: Path) -> None:
    place = next(place for place in PLACES if place.name == "max_model_len")
    with pytest.raises(ConfigError, match=r"^--max-model-len: '1' is wrong: must be at least 2$"):
        load(place, 1, "flag", tmp_path)


def test_arguments_of_python_are_named_as_such() -> None:
    with pytest.raises(ConfigError, match=r"^max_model_len: -1 is wrong: must be at least 2$"):
        load_config(overrides={"max_model_len": -1}, spell=lambda place: place.name)


@pytest.mark.parametrize("source", ["flag", "variable", "argument", "file"])
@pytest.mark.parametrize("dtype", ["f16", "q8", "Q8", "q4", "8"])
def test_kv_cache_dtypes_are_f16_and_q8(dtype: str, source: str, tmp_path: Path) -> None:
    place = next(place for place in PLACES if place.name == "kv_cache_dtype")
    if dtype in ("f16", "q8"):
        assert load(place, dtype, source, tmp_path) == dtype
    else:
        with pytest.raises(ConfigError) as caught:
            load(place, dtype, source, tmp_path)
        assert shown(place, source) in str(caught.value)
        assert "must be one of f16, q8" in str(caught.value)


@pytest.mark.parametrize(
    "settings", [{"kv_prefault_bytes": True}, {"num_compute_threads": True}, {"target_step_s": False}]
)
def test_a_truth_value_is_no_number(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"(True|False) is no value for this setting"):
        EngineConfig.model_validate(settings)
    assert EngineConfig(weight_cache=False, share_weights=True).share_weights is True


@pytest.mark.parametrize("values", [{"port": 8100, "health_port": 8100}, {"health_port": 8000}])
def test_one_port_for_two_listeners_is_told_with_what_to_do(values: dict[str, object]) -> None:
    said = "port and health_port are both 8.00; give health_port another number, or 0"
    with pytest.raises(ConfigError, match=said):
        load_config(overrides=values)
    with pytest.raises(ConfigError, match=said):
        load_config(environment={f"PLAIT_{name.upper()}": str(value) for name, value in values.items()})


def test_a_free_port_may_be_asked_for_twice() -> None:
    server = load_config(overrides={"port": 0, "health_port": 0}).server
    assert (server.port, server.health_port) == (0, 0)
    assert load_config(overrides={"port": 8000, "health_port": 8001}).server.health_port == 8001
