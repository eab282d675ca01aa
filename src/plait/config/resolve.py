"""Turns a configuration with open choices into one without, for a given machine, and says why."""

from __future__ import annotations

import os

import msgspec

from plait.config.ledger import format_bytes
from plait.config.machine import Machine
from plait.config.model import PlaitConfig
from plait.errors import ConfigError


class Choice(msgspec.Struct, frozen=True):
    """One resolved value."""

    name: str
    value: str
    reason: str


class ResolvedConfig(msgspec.Struct, frozen=True):
    """A configuration whose machine-dependent values are settled. What depends on the model stays None."""

    config: PlaitConfig
    cpus: tuple[int, ...]
    """The CPUs of the compute team, one per thread when there are enough."""
    memory_bytes: int
    choices: tuple[Choice, ...]


def resolve(config: PlaitConfig, machine: Machine) -> ResolvedConfig:
    """The same configuration and machine give the same result; of the disk, only folders are looked at.

    Raises:
        ConfigError: the configuration asks for something that cannot be started.
    """
    process_count = config.concurrency.process_count
    if process_count is not None and process_count > 1:
        raise ConfigError(
            f"process_count is {process_count}, but this version runs one engine process; "
            "set it to 1 or leave it out"
        )
    _check_folder(config.engine.kv_swap_dir)
    asked = config.engine.num_compute_threads
    num_threads = machine.num_usable_cores if asked is None else asked
    config.engine.check_num_threads(num_threads)
    choices = [
        Choice(
            "num_compute_threads", str(num_threads), machine.cpu_reason if asked is None else "as configured"
        ),
        Choice("memory", format_bytes(machine.memory_bytes), machine.memory_reason),
    ]
    if asked is not None and asked > machine.num_usable_cores:
        choices.append(
            Choice(
                "warning",
                f"{asked} compute threads on {machine.num_usable_cores} usable cores slow each other down",
                machine.cpu_reason,
            )
        )
    engine = config.engine.model_copy(update={"num_compute_threads": num_threads})
    return ResolvedConfig(
        config=config.model_copy(update={"engine": engine}),
        cpus=machine.cpus[:num_threads],
        memory_bytes=machine.memory_bytes,
        choices=tuple(choices),
    )


def _check_folder(swap_dir: str | None) -> None:
    """Told before a model is pulled or loaded, with what to do."""
    if swap_dir is None:
        return
    if not os.path.isdir(swap_dir):
        what = "is a file, not a folder" if os.path.exists(swap_dir) else "does not exist"
        raise ConfigError(f"--kv-swap-dir: {swap_dir} {what}; make the folder or name another one")
    if not os.access(swap_dir, os.W_OK | os.X_OK):
        raise ConfigError(
            f"--kv-swap-dir: {swap_dir} cannot be written; give it to this user or name another one"
        )
