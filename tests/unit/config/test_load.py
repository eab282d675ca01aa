"""Settings from flags, environment and file."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.config import EngineConfig, Machine, PlaitConfig, load_config, resolve
from plait.config.load import all_fields
from plait.config.values import parse_bytes, parse_weights
from plait.errors import ConfigError

DESIGN_YAML = """\
concurrency:
  process_count: 4          # workers; default: from the core budget
  threads_per_process: 2    # compute threads per worker
  batch_timeout: 0.1        # seconds to wait for a fuller batch; default 0
  max_batch_size: 32        # sequences per step
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "plait.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults() -> None:
    config = load_config()
    assert config == PlaitConfig()
    assert (config.engine.block_tokens, config.engine.max_batch_size, config.engine.max_batch_tokens) == (
        16,
        64,
        512,
    )
    assert (config.server.host, config.server.port) == ("127.0.0.1", 8000)


def test_concurrency_section_sets_the_engine(tmp_path: Path) -> None:
    config = load_config(file=write(tmp_path, DESIGN_YAML))
    assert config.concurrency.process_count == 4
    assert config.engine.num_compute_threads == 2
    assert config.engine.batch_timeout_s == 0.1
    assert config.engine.max_batch_size == 32


def test_flag_wins_over_variable_over_file(tmp_path: Path) -> None:
    file = write(tmp_path, "engine: {max_batch_size: 1, max_batch_tokens: 100, block_tokens: 32}")
    environment = {"PLAIT_MAX_BATCH_SIZE": "2", "PLAIT_MAX_BATCH_TOKENS": "200"}
    config = load_config(file=file, environment=environment, overrides={"max_batch_size": "3", "seed": None})
    assert config.engine.max_batch_size == 3
    assert config.engine.max_batch_tokens == 200
    assert config.engine.block_tokens == 32
    assert config.engine.seed is None


def test_flag_does_not_conflict_with_the_file_s_other_spelling(tmp_path: Path) -> None:
    file = write(tmp_path, "concurrency: {max_batch_size: 32}")
    assert load_config(file=file, overrides={"max_batch_size": "8"}).engine.max_batch_size == 8


def test_values_that_only_fit_together(tmp_path: Path) -> None:
    """A file's value may depend on a flag's."""
    file = write(tmp_path, "engine: {max_batch_size: 1000}")
    config = load_config(file=file, overrides={"max_batch_tokens": "2000"})
    assert config.engine.max_batch_size == 1000
    with pytest.raises(
        ConfigError, match=r"max_batch_size \(1000\) must not exceed max_batch_tokens \(512\)"
    ):
        load_config(file=file)


def test_config_file_from_the_environment(tmp_path: Path) -> None:
    file = write(tmp_path, "server: {port: 9}")
    assert load_config(environment={"PLAIT_CONFIG": str(file)}).server.port == 9


def test_vllm_variable_is_the_fallback(tmp_path: Path) -> None:
    fallback = {"VLLM_NUM_COMPUTE_THREADS": "3"}
    assert load_config(environment=fallback).engine.num_compute_threads == 3
    both = {**fallback, "PLAIT_NUM_COMPUTE_THREADS": "5"}
    assert load_config(environment=both).engine.num_compute_threads == 5
    # As strong as the variable for which it stands: above the file, below the flag.
    file = write(tmp_path, "concurrency: {threads_per_process: 7}")
    assert load_config(file=file, environment=fallback).engine.num_compute_threads == 3
    flag = {"num_compute_threads": "2"}
    assert load_config(environment=both, overrides=flag).engine.num_compute_threads == 2
    assert load_config(environment={}).engine.num_compute_threads is None


def threads_of(file: Path | None = None, flag: str | None = None, **environment: str) -> int | None:
    config = load_config(file=file, environment=environment, overrides={"num_compute_threads": flag})
    return config.engine.num_compute_threads


@pytest.mark.parametrize("empty", ["", "  "])
def test_empty_thread_variables_are_not_set(empty: str) -> None:
    assert threads_of(VLLM_NUM_COMPUTE_THREADS=empty) is None
    assert threads_of(PLAIT_NUM_COMPUTE_THREADS=empty) is None
    assert threads_of(VLLM_NUM_COMPUTE_THREADS="3", PLAIT_NUM_COMPUTE_THREADS=empty) == 3


def test_a_value_that_is_not_used_stops_nothing(tmp_path: Path) -> None:
    assert threads_of(flag="1", VLLM_NUM_COMPUTE_THREADS="many", PLAIT_NUM_COMPUTE_THREADS="few") == 1
    assert threads_of(VLLM_NUM_COMPUTE_THREADS="many", PLAIT_NUM_COMPUTE_THREADS="2") == 2
    for text in ("engine: {num_compute_threads: 4}", "concurrency: {threads_per_process: 4}"):
        assert threads_of(write(tmp_path, text), VLLM_NUM_COMPUTE_THREADS="many") == 4
    with pytest.raises(
        ConfigError, match="VLLM_NUM_COMPUTE_THREADS: 'many' is wrong: must be a whole number"
    ):
        threads_of(write(tmp_path, "engine: {max_batch_size: 2}"), VLLM_NUM_COMPUTE_THREADS="many")
    with pytest.raises(ConfigError, match="PLAIT_NUM_COMPUTE_THREADS: 'few'"):
        threads_of(PLAIT_NUM_COMPUTE_THREADS="few", VLLM_NUM_COMPUTE_THREADS="2")


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"max_batch_size": "many"}, "must be a whole number"),
        ({"batch_timeout_s": "long"}, "must be a number"),
        ({"enable_prefix_cache": "perhaps"}, "must be true or false"),
        ({"engine_mode": "fibers"}, "must be one of threads, coroutine, native"),
        ({"kv_swap_dir": ""}, "must not be empty"),
        ({"kv_swap_dir": "x" * 5000}, "must have at most 4096 characters"),
        ({"tenant_weights": "a=0"}, "'a=0' is not NAME=WEIGHT with a weight from 0.001 to 1000"),
    ],
)
def test_reasons_are_plain_sentences(overrides: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=overrides)
    (name,) = overrides
    assert str(caught.value).startswith(f"--{name.replace('_', '-')}: ")
    assert str(caught.value).endswith(f" is wrong: {reason}")


def test_a_swap_folder_that_cannot_be_used_is_told_with_what_to_do(tmp_path: Path) -> None:
    file = write(tmp_path, "")
    for folder, what in ((tmp_path / "none", "does not exist"), (file, "is a file, not a folder")):
        config = load_config(overrides={"kv_swap_dir": str(folder)})
        with pytest.raises(ConfigError, match=rf"--kv-swap-dir: {folder} {what}; make the folder or name"):
            resolve(config, machine_of(2))
    resolve(load_config(overrides={"kv_swap_dir": str(tmp_path)}), machine_of(2))


def machine_of(num_cores: int) -> Machine:
    cpus = tuple(range(num_cores))
    return Machine(cpus, num_cores, None, 1 << 30, "CPU", cpu_reason="affinity", memory_reason="node")


@pytest.mark.parametrize("asked", [1, 3, 64])
@pytest.mark.parametrize("variable", ["PLAIT_NUM_COMPUTE_THREADS", "VLLM_NUM_COMPUTE_THREADS"])
def test_thread_variables_size_the_team(variable: str, asked: int) -> None:
    machine = machine_of(2)
    resolved = resolve(load_config(environment={variable: str(asked)}), machine)
    assert resolved.config.engine.num_compute_threads == asked
    # More threads than cores are a warning, not an error.
    assert any(choice.name == "warning" for choice in resolved.choices) == (asked > 2)
    default = resolve(load_config(environment={}), machine)
    assert default.config.engine.num_compute_threads == 2


@pytest.mark.parametrize("num_cores", [1, 2])
@pytest.mark.parametrize("asked", [None, "1", "2"])
def test_a_pipeline_needs_two_threads(asked: str | None, num_cores: int) -> None:
    config = load_config(overrides={"compute_parallelism": "pipeline", "num_compute_threads": asked})
    if int(asked or num_cores) >= 2:
        assert resolve(config, machine_of(num_cores)).config.engine.compute_parallelism == "pipeline"
        return
    with pytest.raises(ConfigError, match=r"pipeline needs 2 compute threads or more.* is 1; raise it"):
        resolve(config, machine_of(num_cores))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("enginee: {}", "unknown key enginee; did you mean engine"),
        ("engine:\n  seed: 4\n  seed: 5\n", "seed stands on line 2 and again on line 3"),
        ("server: {port: 1}\nengine: {}\nserver: {}\n", "server stands on line 1 and again on line 3"),
        ("engine: {max_batch_sise: 3}", "unknown key engine.max_batch_sise; did you mean max_batch_size"),
        ("concurrency: {processes: 3}", "unknown key concurrency.processes"),
        ("engine: {max_batch_size: '3'}", "engine.max_batch_size: '3' is wrong"),
        ("engine: {max_batch_size: true}", "engine.max_batch_size: True is wrong"),
        ("engine: {max_batch_size: 0}", "engine.max_batch_size: 0 is wrong"),
        ("engine: {kv_cache_bytes: 3 apples}", "engine.kv_cache_bytes: '3 apples' is wrong"),
        ("engine: {batch_timeout_s: .nan}", "engine.batch_timeout_s: nan is wrong"),
        ("concurrency: {batch_timeout: -1}", "concurrency.batch_timeout: -1 is wrong"),
        ("engine: [1]", "engine must hold keys and values"),
        ("concurrency: {max_batch_size: 3}\nengine: {max_batch_size: 4}", "set only one"),
        ("model: 3", "model: 3 is wrong"),
        ("- 1", "must hold keys and values"),
        ("a: [", "not valid YAML"),
        ("!!python/object/apply:os.getpid []", "not valid YAML"),
    ],
)
def test_bad_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(file=file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


def test_what_all_variables_begin_with_makes_none_alike() -> None:
    with pytest.raises(ConfigError, match=r"unknown environment variable PLAIT_FOO$"):
        load_config(environment={"PLAIT_FOO": "1"})


def test_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read"):
        load_config(file=tmp_path / "nowhere.yaml")


def test_empty_file_and_sections(tmp_path: Path) -> None:
    assert load_config(file=write(tmp_path, "")) == PlaitConfig()
    assert load_config(file=write(tmp_path, "engine:\nserver:\n")) == PlaitConfig()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"PLAIT_PORTT": "1"}, "unknown environment variable PLAIT_PORTT; did you mean PLAIT_PORT"),
        ({"PLAIT_PORT": "abc"}, "environment variable PLAIT_PORT: 'abc' is wrong"),
        ({"PLAIT_PORT": "70000"}, "environment variable PLAIT_PORT: '70000' is wrong"),
        ({"PLAIT_ENABLE_PREFIX_CACHE": "perhaps"}, "PLAIT_ENABLE_PREFIX_CACHE: 'perhaps' is wrong"),
        ({"VLLM_NUM_COMPUTE_THREADS": "many"}, "environment variable VLLM_NUM_COMPUTE_THREADS: 'many'"),
        ({"PLAIT_NUM_COMPUTE_THREADS": "no"}, "environment variable PLAIT_NUM_COMPUTE_THREADS: 'no'"),
        ({"PLAIT_TENANT_WEIGHTS": "a"}, "environment variable PLAIT_TENANT_WEIGHTS: 'a' is wrong"),
    ],
)
def test_bad_variable_is_named(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(environment=environment)
    assert message in str(caught.value)


def test_variables_of_others_are_left_alone() -> None:
    environment = {"PLAIT_FORCE_ISA": "avx2", "PLAIT_MODEL_DIR": "/m", "PATH": "/bin", "PLAIT_TEST_X": "1"}
    assert load_config(environment=environment) == PlaitConfig()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"port": "-1"}, "--port: '-1' is wrong"),
        ({"max_batch_size": "1.5"}, "--max-batch-size: '1.5' is wrong"),
        ({"block_token": "4"}, "unknown setting block_token; did you mean block_tokens"),
    ],
)
def test_bad_flag_is_named(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=overrides)
    assert message in str(caught.value)


def test_configuration_is_immutable() -> None:
    with pytest.raises(ValueError, match="frozen"):
        EngineConfig().max_batch_size = 3  # type: ignore[misc]


def test_fields_have_flags_and_variables() -> None:
    places = {place.key: (place.flag, place.variable) for place in all_fields()}
    assert places["engine.max_batch_tokens"] == ("--max-batch-tokens", "PLAIT_MAX_BATCH_TOKENS")
    assert places["server.port"] == ("--port", "PLAIT_PORT")
    assert places["model"] == ("--model", "PLAIT_MODEL")


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("0", 0), ("1024", 1024), ("2GiB", 2 << 30), ("512M", 512 << 20), ("1.5 kb", 1536), ("1T", 1 << 40)],
)
def test_parse_bytes(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@given(st.text(max_size=12))
def test_parse_bytes_never_fails_otherwise(text: str) -> None:
    if any(char.isdigit() for char in text):
        with contextlib.suppress(ValueError):
            assert isinstance(parse_bytes(text), int)
    else:
        with pytest.raises(ValueError, match="not a number of bytes"):
            parse_bytes(text)


def test_tenant_weights() -> None:
    assert parse_weights("") == []
    assert parse_weights("10.0.0.5=4, 2001:db8::/64=0.5,") == [("10.0.0.5", 4.0), ("2001:db8::/64", 0.5)]
    config = load_config(overrides={"tenant_weights": "a=2"})
    assert config.engine.tenant_weights == "a=2"


@pytest.mark.parametrize("text", ["a", "=1", "a=", "a=0", "a=-1", "a=nan", "a=1e9", "a=1,a=2", "a=1=b"])
def test_tenant_weights_that_are_none_name_the_setting(text: str) -> None:
    with pytest.raises(ConfigError, match=r"tenant.weights"):
        load_config(overrides={"tenant_weights": text})
