"""Token-weighted fairness between tenants: who got least so far is next (a virtual token counter)."""

from __future__ import annotations


class Tenant:
    __slots__ = ("name", "num_requests", "num_running", "served")

    def __init__(self, name: str, served: int) -> None:
        self.name = name
        self.served = served
        """Tokens computed for it while it was active: prompt tokens at admission, then each generated one."""
        self.num_requests = 0
        self.num_running = 0
        """Its sequences in the running set."""


class Tenants:
    """The tenants that have unfinished requests."""

    def __init__(self) -> None:
        self._active: dict[str, Tenant] = {}

    def __len__(self) -> int:
        return len(self._active)

    def enter(self, name: str) -> Tenant:
        """The tenant of one more request. A newcomer starts level with the least served: no old credit."""
        tenant = self._active.get(name)
        if tenant is None:
            served = min((other.served for other in self._active.values()), default=0)
            tenant = self._active[name] = Tenant(name, served)
        tenant.num_requests += 1
        return tenant

    def leave(self, tenant: Tenant) -> None:
        tenant.num_requests -= 1
        if tenant.num_requests == 0:
            del self._active[tenant.name]
