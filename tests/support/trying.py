"""An in-memory systemd that ends a trial on an in-memory kernel, as the script does on the real one."""

from __future__ import annotations

from collections.abc import Sequence

from hostrouting import Layout
from hostrouting.model.routes import Route, Table
from hostrouting.testing import FakeKernel, FakeSystemd


def ours(kernel: FakeKernel) -> tuple[Route, ...]:
    return tuple(route for route in kernel.routes(Table.MAIN) if route.is_ours)


class TrialSystemd(FakeSystemd):
    """A systemd whose timer expires when the test tells it to."""

    def __init__(self, layout: Layout, kernel: FakeKernel) -> None:
        super().__init__(layout, running=["systemd-nspawn@kube1.service"])
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
