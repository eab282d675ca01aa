"""plait doctor"""

from __future__ import annotations

import json
import os
import platform
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait import __version__
from plait.errors import PlaitError

if TYPE_CHECKING:
    from plait.config import Machine


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    value: str
    is_ok: bool = True


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Look at this machine and this installation; exit code 1 when something is wrong."""
    findings = examine()
    if as_json:
        print(json.dumps({f.name: {"value": f.value, "is_ok": f.is_ok} for f in findings}))
    else:
        for finding in findings:
            print(f"{'ok ' if finding.is_ok else 'BAD'} {finding.name:14} {finding.value}")
    if not all(finding.is_ok for finding in findings):
        raise typer.Exit(1)


def examine() -> list[Finding]:
    """Everything that can go wrong before the first request."""
    from plait.config import read_machine

    machine = read_machine()
    return [
        Finding("plait", __version__),
        Finding("python", f"{platform.python_version()} at {sys.executable}"),
        *_machine_findings(machine),
        _extension(),
        _configuration(),
        *_models(),
    ]


def _machine_findings(machine: Machine) -> list[Finding]:
    from plait.config import format_bytes

    quota = "none" if machine.cpu_quota is None else f"{machine.cpu_quota:g} CPUs"
    cpus = ",".join(str(cpu) for cpu in machine.cpus)
    return [
        Finding("cpu", machine.cpu_model),
        Finding("cores", f"{machine.num_usable_cores} usable of CPUs {cpus}: {machine.cpu_reason}"),
        Finding("cgroup quota", quota),
        Finding("memory", f"{format_bytes(machine.memory_bytes)}: {machine.memory_reason}"),
    ]


def _extension() -> Finding:
    try:
        from plait.engine.isa import choose_isa

        isa, reason = choose_isa()
    except ImportError as error:
        return Finding("extension", f"not built: {error}", is_ok=False)
    except PlaitError as error:
        return Finding("extension", str(error), is_ok=False)
    return Finding("extension", f"loaded, kernels {isa}: {reason}")


def _configuration() -> Finding:
    from plait.config import load_config, read_machine, resolve

    try:
        resolve(load_config(environment=os.environ), read_machine())
    except PlaitError as error:
        return Finding("configuration", str(error), is_ok=False)
    return Finding("configuration", os.environ.get("PLAIT_CONFIG", "defaults and environment"))


def _models() -> list[Finding]:
    from plait.weights.catalog import CATALOG, how_to_renew, model_dir
    from plait.weights.pull import has_right_content, is_present

    try:
        folder = model_dir()
    except PlaitError as error:
        return [Finding("model folder", str(error), is_ok=False)]
    fault = folder_fault(folder)
    advice = f": {fault}; PLAIT_MODEL_DIR can name another folder" if fault else ""
    findings = [Finding("model folder", f"{folder}{advice}", not fault)]
    for model in CATALOG.values():
        path = folder / model.file_name
        if not is_present(path, model):
            findings.append(Finding("model", f"{model.name}: not pulled yet"))
        elif has_right_content(path, model):
            findings.append(Finding("model", f"{model.name}: here"))
        else:
            findings.append(Finding("model", f"{model.name}: {how_to_renew(model, path)}", is_ok=False))
    return findings


def folder_fault(folder: Path) -> str:
    """Why no model can be stored in ``folder``, which need not be there yet; empty: one can."""
    for path in (folder, *folder.parents):
        try:
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return f"{path} cannot be looked at ({error.strerror})"
        if not stat.S_ISDIR(mode):
            return f"{path} is a file, not a folder"
        if not os.access(path, os.W_OK | os.X_OK):
            return "it cannot be written" if path == folder else f"{path} cannot be written"
        return ""
    return "it is nowhere"
