"""Which tenant a client is, for fair shares and a prefix cache of its own: decided by what it cannot choose freely."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address

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
