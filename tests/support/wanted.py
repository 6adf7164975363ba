"""The config of the packages' tests, with one route, which fixes what ib0 shadows, and a check of the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hostrouting import Config

if TYPE_CHECKING:
    from collections.abc import Collection

    from hostrouting.testing import FakeKernel

MACHINE = "systemd-nspawn@kube1.service"
SHADOWED = "172.16.1.0/24"
ROUTE = {"destination": SHADOWED}
LINE = f"{SHADOWED} via 10.1.0.1 dev eth0 proto hostrouting"


def section(
    *routes: dict[str, Any] | str, cidrs: Collection[str] = (SHADOWED,), mode: str = "STRICT", **more: Any
) -> dict[str, Any]:
    """Return the hostRouting section of a config. A route given as a string is only a destination."""
    entries = [{"destination": each} if isinstance(each, str) else each for each in routes]
    static = {"enabled": True, "routes": entries}
    return {"staticRoutes": static, "routeOverlap": {"expectedCidrs": [*cidrs], "mode": mode}, "waitSeconds": 0} | more


def config(
    *routes: dict[str, Any] | str, cidrs: Collection[str] = (SHADOWED,), mode: str = "STRICT", **more: Any
) -> Config:
    """Return a config with this section."""
    return Config.from_mapping({"hostRouting": section(*routes, cidrs=cidrs, mode=mode, **more)})


def lose_default_route(kernel: FakeKernel) -> None:
    """Remove the default routes of table main."""
    assert not kernel.delete(kernel.default_routes())
