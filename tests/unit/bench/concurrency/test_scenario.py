"""Loads: the schema is strict, and the work that is drawn is the same for the same seed."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from plait.bench.concurrency.records import read_record
from plait.bench.concurrency.scenario import Scenario, known_loads, load_scenario
from plait.bench.concurrency.work import draw_size, draw_work
from plait.errors import ConfigError
from plait.types import EngineInfo

GOOD: dict[str, Any] = {
    "name": "mine",
    "description": "a test",
    "clients": [1, 2],
    "min_requests": 12,
    "requests_per_client": 3,
    "prompt_tokens": [8, 32],
    "output_tokens": [2, 4],
    "seed": 7,
    "shared_prefix_tokens": 4,
    "long": {"every": 4, "prompt_tokens": [100, 200], "output_tokens": [1, 2]},
    "slow": {"every": 2, "interval_s": 1},
    "aborts": {"every": 3, "after_tokens": [1, 3]},
    "kv_pool": {"share": 0.5, "swap_bytes": 1024},
}
INFO = EngineInfo("m", "llama", 1000, 4096, (0,), 64, 16, 1, "none")


def read(**changes: Any) -> Scenario:
    scenario = read_record(Scenario, {**GOOD, **changes}, "file")
    scenario.check()
    return scenario


def test_loads_that_come_with_plait_are_good_and_known() -> None:
    assert known_loads() == ["chat", "io", "mixed"]
    for name in known_loads():
        scenario = load_scenario(name)
        assert scenario.name == name
        scenario.reduced().check()
    assert load_scenario("chat").clients == (1, 8, 32)
    long = load_scenario("mixed").long
    assert long is not None
    assert long.prompt_tokens == (2000, 6000)
    io = load_scenario("io")
    assert io.kv_pool is not None
    assert io.slow is not None
    assert io.aborts is not None


def test_the_benchmarks_folder_shows_the_same_files() -> None:
    folder = Path(__file__).parents[4] / "benchmarks/modes"
    assert sorted(path.stem for path in folder.glob("*.json")) == known_loads()


def test_a_scenario_survives_json() -> None:
    scenario = read()
    assert read_record(Scenario, json.loads(json.dumps(asdict(scenario))), "copy") == scenario


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": 1}, "file: unknown key 'colour'"),
        ({"clients": 1}, "file: clients: a list is expected, not 1"),
        ({"clients": [1, "two"]}, r"file: clients\[1\]: an integer is expected, not 'two'"),
        ({"clients": []}, "clients must be numbers from 1"),
        ({"clients": [0]}, "clients must be numbers from 1"),
        ({"min_requests": 1.5}, "min_requests: an integer is expected"),
        ({"min_requests": True}, "min_requests: an integer is expected, not True"),
        ({"min_requests": 0}, "min_requests and requests_per_client"),
        ({"prompt_tokens": [1]}, "prompt_tokens: 2 values are expected, not 1"),
        ({"prompt_tokens": [32, 8]}, "prompt_tokens must be two rising numbers"),
        ({"shared_prefix_tokens": 8}, "shared_prefix_tokens must be less"),
        ({"temperature": 3}, "temperature must be 0 to 2"),
        ({"temperature": float("inf")}, "a finite number is expected"),
        ({"long": {"every": 4}}, "file: long: prompt_tokens is missing"),
        ({"long": {**GOOD["long"], "evry": 4}}, "file: long: unknown key 'evry'"),
        ({"long": {**GOOD["long"], "every": 0}}, "long: every must be 1 or more"),
        ({"long": 4}, "file: long: an object is expected, not 4"),
        ({"slow": {"every": 1, "interval_s": 0}}, "interval_s must be above 0"),
        ({"aborts": {"every": 1, "after_tokens": [0, 1]}}, "after_tokens must be two rising"),
        ({"kv_pool": {"share": 0}}, "share must be above 0"),
        ({"name": 5}, "name: a text is expected"),
    ],
)
def test_mistakes_are_named_with_their_place(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**changes)


def test_missing_files_and_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no load 'chta'; use chat, io, mixed"):
        load_scenario("chta")
    with pytest.raises(ConfigError, match="No such file"):
        load_scenario(str(tmp_path / "none.json"))
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(ConfigError, match="no JSON"):
        load_scenario(str(broken))
    listed = tmp_path / "list.json"
    listed.write_text("[]")
    with pytest.raises(ConfigError, match=r"an object is expected, not \[\]"):
        load_scenario(str(listed))


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(GOOD))
    assert load_scenario(str(path)) == read()


def test_work_is_the_same_for_every_number_of_clients() -> None:
    scenario = read()
    few, many = draw_work(scenario, 1, INFO), draw_work(scenario, 5, INFO)
    assert (len(few), len(many)) == (12, 15)
    assert many[:12] == few
    assert draw_work(replace(scenario, seed=8), 1, INFO) != few


def test_work_is_what_the_scenario_says() -> None:
    work = draw_work(read(), 1, INFO)
    prefix = work[0].request.prompt_token_ids[:4]
    for i, item in enumerate(work):
        request = item.request
        assert item.is_long == ((i + 1) % 4 == 0)
        low, high = (100, 200) if item.is_long else (8, 32)
        assert low <= len(request.prompt_token_ids) <= high
        assert request.prompt_token_ids[:4] == prefix
        assert all(0 <= token < 1000 for token in request.prompt_token_ids)
        assert request.sampling.ignore_eos
        most = request.sampling.max_tokens
        assert most is not None
        assert (item.abort_after_tokens is not None) == ((i + 1) % 3 == 0)
        assert (item.abort_after_tokens or 1) <= most
    assert len({item.request.prompt_token_ids for item in work}) == len(work)


def test_work_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"requests of 202 tokens do not fit the engine's 100"):
        draw_work(read(), 1, structs.replace(INFO, max_model_len=100))


def test_sizes_fall_evenly_into_factors_of_two() -> None:
    import random

    draw = random.Random(1)
    sizes = [draw_size(draw, (32, 512)) for _ in range(4000)]
    assert min(sizes) >= 32
    assert max(sizes) <= 512
    for low in (32, 64, 128, 256):
        assert 800 < sum(low <= size < 2 * low for size in sizes) < 1200
    assert draw_size(draw, (5, 5)) == 5
