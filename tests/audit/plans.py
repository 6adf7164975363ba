"""Compare the prediction of ``plan`` with what the task and the boot script then do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scripts import Sandbox
from worlds.hosts import Host

import phases
from audit.examine import Audit
from hostrouting import Config, ConfigError, Layout, RouteError, Verdict, check, plan
from hostrouting import Host as PlannedHost
from hostrouting.boot.render import render_static_routes
from hostrouting.kernel.port import read_routes
from hostrouting.model.family import Family
from hostrouting.model.routes import RouteType
from hostrouting.tasks.install_routes import InstallRoutes
from hostrouting.testing import FakeSystemd

# The longest prefix that a drawn route may add to the length of an expected CIDR's.
_LONGER = 12


class PlanAudit(Audit):
    """An audit that plans random static routes, installs them, and checks.

    See ``Audit`` for the arguments.

    Attributes:
        admitted: whether the plan predicted that the next start is admitted.
    """

    admitted: bool | None = None

    def __init__(self, host: Host, addresses: int) -> None:
        super().__init__(host, addresses)
        self._chance = random.Random(f"{host.text} routes")
        wanted = {str(each["destination"]): each for each in self._draw()}
        # In WARN mode, most plans depend on the routes alone.
        self._is_strict = self._chance.random() < 0.5
        mode = "STRICT" if self._is_strict else "WARN"
        overlap = host.hostrouting["routeOverlap"] | {"mode": mode, "settleSeconds": 0}
        static = {"enabled": True, "routes": [*wanted.values()]}
        section = host.hostrouting | {
            "routeOverlap": overlap,
            "staticRoutes": static,
            "waitSeconds": 0,
        }
        self.config = Config.from_mapping({"hostRouting": section})

    def _draw(self) -> Iterator[dict[str, Any]]:
        """Yield routes: parts of expected CIDRs, or destinations that exist, with or without a next
        hop.
        """
        chance, kernel = (
            self._chance,
            self._kernel if self.host.family is Family.IPV4 else self._kernel6,
        )
        cidrs = [str(each.cidr) for each in self.host.config.route_overlap.expected_cidrs]
        hops = [
            hop for route in read_routes(kernel) for hop in route.hops if hop.gateway is not None
        ]
        # A temporary address is another one on the copy of the host.
        is_random = "use_tempaddr" in self.host.text
        entries = [
            each for each in read_routes(kernel) if not (is_random and each.type is RouteType.LOCAL)
        ]
        taken = [entry.destination for entry in entries if entry.destination.prefixlen > 0]
        for _ in range(chance.choice((1, 1, 2, 3))):
            cidr = ip_network(chance.choice(cidrs))
            length = min(
                cidr.prefixlen + chance.choice((0, 1, 1, 2, 8, _LONGER)), cidr.max_prefixlen
            )
            number = int(cidr[0]) + chance.randrange(cidr.num_addresses)
            destination = ip_network((number, length), strict=False)
            if taken and chance.random() < 0.2:
                destination = ip_network(str(chance.choice(taken)))
            route: dict[str, Any] = {"destination": str(destination)}
            if chance.random() < 0.3:
                route["dev"] = chance.choice([link.name for link in kernel.facts().links])
            if hops and chance.random() < 0.3:
                hop = chance.choice(hops)
                route |= {"gateway": str(hop.gateway)} | (
                    {"dev": hop.dev} if chance.random() < 0.7 else {}
                )
            elif chance.random() < 0.2:
                route["gateway"] = "onlink"
            if chance.random() < 0.2:
                route["metric"] = chance.choice((50, 100, 512))
            try:
                Config.from_mapping(
                    {"hostRouting": {"staticRoutes": {"enabled": True, "routes": [route]}}}
                )
            except ConfigError:
                continue
            yield route

    def run(self) -> None:
        """Plan, then install and check, and install with the script on a copy of the host."""
        with TemporaryDirectory() as root:
            Path(root, "proc").symlink_to("/proc")
            predicted = self._planned(root)
            why_refused = self._installed(root)
            verdict = Verdict.OK
            if not why_refused:
                verdict = check(self.config, host=self._host(root)).verdict
        is_let_through = not why_refused and (verdict is Verdict.OK or not self._is_strict)
        self.admitted = predicted is None
        if self.admitted is not is_let_through and not self._is_doubt(predicted, verdict):
            said, so = (
                predicted or "let through",
                why_refused or f"installed, and the check says {verdict}",
            )
            self._tell("plan", [f"it says {said}, but: {so}"])
        if "a policy rule matches source ports" in why_refused:
            # The script asks without ports, so it installs the routes; the check at boot has no
            # verdict then.
            return
        self._make()
        if (code := self._booted()) != (1 if why_refused else 0):
            self._tell("script", [f"it ends with {code}, but: {why_refused or 'installed'}"])

    def _host(self, root: str) -> PlannedHost:
        kernel6 = self._kernel6 if self.host.family is Family.IPV6 else None
        return PlannedHost(
            routes=self._kernel, routes6=kernel6, units=FakeSystemd(), layout=Layout(root)
        )

    def _planned(self, root: str) -> str | None:
        """Return why the next start would be held back, or None."""
        try:
            next_start = plan(self.config, host=self._host(root)).next_start
        except RouteError as error:
            return error.message
        return None if next_start.is_admitted else next_start.reason

    def _is_doubt(self, predicted: str | None, verdict: Verdict) -> bool:
        """Return whether a plan can't judge although the kernel can, for a reason that a snapshot
        may have.
        """
        is_doubt = (
            verdict is not Verdict.UNKNOWN
            and predicted is not None
            and "the snapshot doesn't show" in predicted
        )
        if is_doubt:
            self._doubt("plan", str(predicted))
        return is_doubt

    def _installed(self, root: str) -> str:
        """Return why the routes can't be installed, or an empty string."""
        try:
            InstallRoutes(self.config, host=self._host(root)).do(phases.CancelScope())
        except RouteError as error:
            return error.message
        return ""

    def _booted(self) -> int:
        with TemporaryDirectory() as root:
            return Sandbox(Path(root)).run(render_static_routes(self.config)).returncode
