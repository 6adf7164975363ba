"""A config with one static route, which works around ib0's shadowing, a check of the result, and a
trial of it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hostrouting import Config, Host, Layout
from hostrouting.boot.locks import Done
from hostrouting.boot.manifest import Manifest
from hostrouting.kernel.port import Write, read_default_routes, read_routes
from hostrouting.model.routes import Route, Table
from hostrouting.tasks.install_routes import write_routes
from hostrouting.testing import FakeKernel, FakeSystemd
from phases import CancelScope

MACHINE = "systemd-nspawn@kube1.service"
SHADOWED = "172.16.1.0/24"
ROUTE = {"destination": SHADOWED}
LED_AWAY = (
    f"packets from the addresses of ib0 no longer go to {SHADOWED} through ib0, but through eth0; "
    'to keep them on ib0, add to hostRouting.staticRoutes.keep: "ib0"'
)
"""The warning of a run that adds this route, because nothing keeps ib0."""
LINE = f"{SHADOWED} via 10.1.0.1 dev eth0 proto hostrouting"


def section(
    *routes: dict[str, Any] | str,
    cidrs: Collection[Any] = (SHADOWED,),
    mode: str = "STRICT",
    rules: Collection[Any] = (),
    keep: Collection[Any] = (),
    **more: Any,
) -> dict[str, Any]:
    """Return a config's hostRouting section. A route given as a string has only a destination."""
    entries = [{"destination": each} if isinstance(each, str) else each for each in routes]
    static: dict[str, Any] = {"enabled": True, "routes": entries}
    static |= {name: [*some] for name, some in {"rules": rules, "keep": keep}.items() if some}
    return {
        "staticRoutes": static,
        "routeOverlap": {"expectedCidrs": [*cidrs], "mode": mode},
        "waitSeconds": 0,
    } | more


def config(
    *routes: dict[str, Any] | str,
    cidrs: Collection[Any] = (SHADOWED,),
    mode: str = "STRICT",
    **more: Any,
) -> Config:
    return Config.from_mapping({"hostRouting": section(*routes, cidrs=cidrs, mode=mode, **more)})


def lose_default_route(kernel: FakeKernel) -> None:
    """Delete the default routes in table main."""
    assert not kernel.write(Write.DELETE, read_default_routes(kernel))


def ours(kernel: FakeKernel) -> tuple[Route, ...]:
    return tuple(route for route in read_routes(kernel, Table.MAIN) if route.is_ours)


class TrialSystemd(FakeSystemd):
    """A systemd that ends a trial as its script does, when the test says that time is over."""

    def __init__(self, layout: Layout, kernel: FakeKernel) -> None:
        super().__init__(layout, running=[MACHINE])
        self._host = Host(kernel, self, layout)

    def restart(self, unit: str) -> None:
        if unit != "hostrouting-trial.service":
            super().restart(unit)
        elif self._host.layout.trial.exists():
            installed = Manifest.of_host(self._host.layout).config
            write_routes(installed, self._host, CancelScope(), 0, (), Done())
