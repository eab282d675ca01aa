from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from plait.config import ResolvedConfig
from plait.config.values import parse_weights
from plait.errors import ConfigError
from plait.server.tenant import read_tenant_weights, tenant_of
from tests.fakes.run_cli import run


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


def test_weights_are_for_names_that_clients_have() -> None:
    weights, unknown = read_tenant_weights(
        "nobody=5,::1=2,10.0.0.0/8=3,192.0.2.7=0.5,::ffff:192.0.2.8=4,2001:DB8:1:2::/64=6,2001:db8::/32=7"
    )
    assert parse_weights(weights) == [
        ("::/64", 2.0),
        ("192.0.2.7", 0.5),
        ("192.0.2.8", 4.0),
        ("2001:db8:1:2::/64", 6.0),
    ]
    assert unknown == ["nobody", "10.0.0.0/8", "2001:db8::/32"]
    assert all(tenant_of(name.split("/")[0]) == name for name, _ in parse_weights(weights))
    assert read_tenant_weights("nobody=5") == ("", ["nobody"])


def test_two_weights_of_one_tenant_are_an_error() -> None:
    with pytest.raises(ConfigError, match="::1 and ::2 are one tenant, ::/64; give it one weight"):
        read_tenant_weights("::1=2,::2=3")


def test_serve_tells_of_weights_for_nobody(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []

    @contextmanager
    def load(resolved: ResolvedConfig, ports: object) -> Iterator[None]:
        seen.append(resolved.config.engine.tenant_weights)
        raise ConfigError("far enough")
        yield

    monkeypatch.setattr("plait.cli.serve._loaded", load)
    code, _, err = run(capsys, "serve", "--port", "0", "--tenant-weights", "nobody=5,::1=2")
    assert (code, seen) == (2, ["::/64=2.0"])
    assert "warning: --tenant-weights: no client is called nobody; a tenant is an address" in err
    assert "::1" not in err
