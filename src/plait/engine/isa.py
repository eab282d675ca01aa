"""The instruction set that an engine of this process will use."""

from __future__ import annotations

from plait import _native
from plait.errors import ConfigError


def choose_isa() -> tuple[str, str]:
    """(name, reason).

    Raises:
        ConfigError: PLAIT_FORCE_ISA names one that is unknown or cannot run here.
    """
    try:
        name, reason = _native.choose_isa()
    except _native.NativeError as error:
        raise ConfigError(str(error.args[1])) from None
    return str(name), str(reason)
