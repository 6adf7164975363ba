"""A config with one static route, which works around ib0's shadowing, a check of the result, and a trial of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from hostrouting import Config, Layout
from hostrouting.model.routes import Route, Table
from hostrouting.testing import FakeKernel, FakeSystemd

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


def ours(kernel: FakeKernel) -> tuple[Route, ...]:
    return tuple(route for route in kernel.routes(Table.MAIN) if route.is_ours)


class TrialSystemd(FakeSystemd):
    """A systemd whose timer expires when the test tells it to."""

    def __init__(self, layout: Layout, kernel: FakeKernel) -> None:
        super().__init__(layout, running=[MACHINE])
        self._trial = layout.trial
        self._kernel = kernel
        self._before: tuple[Route, ...] = ()

    def run_later(self, name: str, seconds: int, argv: Sequence[str]) -> None:
        super().run_later(name, seconds, argv)
        self._before = ours(self._kernel)

    def restart(self, unit: str) -> None:
        if unit != "hostrouting-trial.service":
            super().restart(unit)
        elif self._trial.exists():
            self._kernel.delete(ours(self._kernel))
            self._kernel.add(self._before)
            self._trial.unlink()
