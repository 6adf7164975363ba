"""A config with one static route, which works around ib0's shadowing, and a check of the result."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hostrouting import Config
from hostrouting.testing import FakeKernel

MACHINE = "systemd-nspawn@kube1.service"
SHADOWED = "172.16.1.0/24"
ROUTE = {"destination": SHADOWED}
LINE = f"{SHADOWED} via 10.1.0.1 dev eth0 proto hostrouting"


def section(
    *routes: dict[str, Any] | str, cidrs: Collection[Any] = (SHADOWED,), mode: str = "STRICT", **more: Any
) -> dict[str, Any]:
    """Return a config's hostRouting section. A route given as a string has only a destination."""
    entries = [{"destination": each} if isinstance(each, str) else each for each in routes]
    static = {"enabled": True, "routes": entries}
    return {"staticRoutes": static, "routeOverlap": {"expectedCidrs": [*cidrs], "mode": mode}, "waitSeconds": 0} | more


def config(
    *routes: dict[str, Any] | str, cidrs: Collection[Any] = (SHADOWED,), mode: str = "STRICT", **more: Any
) -> Config:
    return Config.from_mapping({"hostRouting": section(*routes, cidrs=cidrs, mode=mode, **more)})


def lose_default_route(kernel: FakeKernel) -> None:
    """Delete the default routes in table main."""
    assert not kernel.delete(kernel.default_routes())
