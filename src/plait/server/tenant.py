"""Which tenant a client is, for fair shares and a prefix cache of its own: decided by what it cannot choose freely."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network, ip_address, ip_network

from plait.config.values import parse_weights
from plait.errors import ConfigError

# What one customer of an IPv6 network gets at least.
IPV6_PREFIX_BITS = 64


@lru_cache(maxsize=4096)
def tenant_of(address: str) -> str:
    """The tenant of a client's address; "" when it is none (a Unix socket's)."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return ""
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    host_bits = 128 - IPV6_PREFIX_BITS
    return f"{IPv6Address(int(parsed) >> host_bits << host_bits)}/{IPV6_PREFIX_BITS}"


def read_tenant_weights(text: str) -> tuple[str, list[str]]:
    """``tenant_weights`` as a server can use them: each name as tenant_of gives it; and the names, left out then, that
    no client can have.

    Raises:
        ConfigError: two of the names are one tenant.
    """
    spelled: dict[str, str] = {}
    weights: list[str] = []
    unknown: list[str] = []
    for name, weight in parse_weights(text):
        tenant = _tenant_of_name(name)
        if tenant is None:
            unknown.append(name)
        elif tenant in spelled:
            raise ConfigError(
                f"--tenant-weights: {spelled[tenant]} and {name} are one tenant, {tenant}; give it one weight"
            )
        else:
            spelled[tenant] = name
            weights.append(f"{tenant}={weight!r}")
    return ",".join(weights), unknown


def _tenant_of_name(name: str) -> str | None:
    """None when the name is neither an address nor an IPv6 network of the size that is one tenant."""
    if tenant := tenant_of(name):
        return tenant
    try:
        network = ip_network(name, strict=False)
    except ValueError:
        return None
    is_tenant = isinstance(network, IPv6Network) and network.prefixlen == IPV6_PREFIX_BITS
    return str(network) if is_tenant else None
