from __future__ import annotations

import pytest

from plait.server.tenant import tenant_of


@pytest.mark.parametrize(
    ("address", "tenant"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("", ""),
        ("/run/plait.sock", ""),
    ],
)
def test_tenant_of_an_address(address: str, tenant: str) -> None:
    assert tenant_of(address) == tenant
