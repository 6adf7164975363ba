"""Updates from config A to config B, and the expected gate decisions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import attrs
from go_package import ANY, write_go_package
from wanted import MACHINE, config

from hostrouting import (
    CheckRouteOverlap,
    Config,
    Configure,
    ConfigureStaticRoutes,
    Host,
    RemoveHostRouting,
)
from hostrouting.kernel.port import Write, read_our_routes
from hostrouting.model.family import Family, IpNetwork
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route
from hostrouting.routes.plan import read_policy
from hostrouting.tasks.trial import ConfirmTrial, TryRoutes
from hostrouting.watch.loop import WatchHostRouting, _Watch
from phases import CancelScope, Serial, Task, task
from search.bundles import run_script

Make = Callable[[Host], Task[object]]

KUBELET, TEMPLATE = "kubelet.service", "systemd-nspawn@.service"

# ib0's connected route 172.16.0.0/16 shadows these CIDRs, unless a static route covers them.
X, Y, Z = "172.16.1.0/24", "172.16.2.0/24", "172.16.9.0/24"
X_HALVES = ("172.16.1.0/25", "172.16.1.128/25")
X_WIDER = "172.16.0.0/23"
# The same in IPv6, where ib0's connected route is fd00:16::/48.
X6, Y6 = "fd00:16:0:1::/64", "fd00:16:0:2::/64"
# Nothing shadows this CIDR.
SERVICES = "10.96.0.0/12"

_TRIAL_SECONDS = 600


@attrs.frozen
class Pair:
    """An update and the expected gate decisions.

    Args:
        name: the update's name.
        before: config A, or None to start without an installation.
        after: config B, or None to remove everything.
        starts: for each unit, whether the gate admits it with ``before`` and with ``after``.
        is_one_step: whether to run ``Configure``, which is atomic, instead of its two tasks in
            sequence.
        first: an action to perform after installing A and before the update, or None.
        passing: a temporary update to run instead of the one from A to B, or None. Installing A
            reverts it.
        script: the script of a bundle that makes the update, or an empty string.
    """

    name: str
    before: Config | None
    after: Config | None
    starts: Mapping[str, tuple[bool, bool]]
    is_one_step: bool = True
    first: Make | None = None
    passing: Make | None = None
    script: str = ""

    @property
    def refused_destination(self) -> IpNetwork | None:
        """Return a destination of B that the kernel can reject without affecting A's routes, or
        None.
        """
        old, new = _destinations(self.before), _destinations(self.after)
        return next((one for one in new if not any(one.overlaps(other) for other in old)), None)

    def task(self, host: Host) -> Task[object]:
        """Return the update task."""
        if self.passing is not None:
            return self.passing(host)
        if self.script:
            return run_script(self.after or self.before or Config(), self.script)
        if self.is_one_step or self.after is None:
            return task_for(self.after, host)
        return Serial(
            ConfigureStaticRoutes(self.after, host=host), CheckRouteOverlap(self.after, host=host)
        )

    def again(self, host: Host) -> Task[object]:
        """Return a task that recovers from a killed update."""
        return self.task(host) if self.passing is None else task_for(self.before, host)

    def complaints_between(self, admitted: Mapping[str, bool]) -> list[str]:
        """Return descriptions of incorrect decisions during the update.

        Args:
            admitted: for each unit, whether the gate admitted it. Units may be missing.
        """
        found = []
        for unit, is_admitted in admitted.items():
            under_a, under_b = self.starts[unit]
            if under_a == under_b != is_admitted:
                found.append(
                    f"{unit} was {_word(is_admitted)} in the update; "
                    f"under both configs it is {_word(under_a)}"
                )
        is_held_under_each = not any(
            all(answers) for answers in zip(*self.starts.values(), strict=True)
        )
        if len(admitted) == len(self.starts) > 1 and is_held_under_each and all(admitted.values()):
            found.append(
                f"{' and '.join(admitted)} were all admitted at one moment; "
                "each config holds one of them"
            )
        return found

    def complaints_after(self, admitted: Mapping[str, bool], *, is_updated: bool) -> list[str]:
        """Return descriptions of incorrect decisions after the update.

        Args:
            admitted: for each unit, whether the gate admitted it.
            is_updated: whether B is installed. If False, it was rolled back to A.
        """
        return [
            f"{unit} was {_word(is_admitted)} after the update; "
            f"under {'B' if is_updated else 'A'} it is "
            f"{_word(not is_admitted)}"
            for unit, is_admitted in admitted.items()
            if self.starts[unit][is_updated] != is_admitted
        ]


def task_for(config: Config | None, host: Host) -> Task[object]:
    """Return a task that installs a config, or removes everything if it is None."""
    return RemoveHostRouting(host=host) if config is None else Configure(config, host=host)


def _destinations(config: Config | None) -> list[IpNetwork]:
    return [] if config is None else [route.destination for route in config.static_routes.routes]


def _word(is_admitted: bool) -> str:
    return "admitted" if is_admitted else "held"


def _config(
    routes: Iterable[str | dict[str, Any]] = (),
    expects: Collection[str] = (),
    mode: str = "STRICT",
    **more: Any,
) -> Config:
    return config(*routes, cidrs=expects, mode=mode, **more)


def _pair(
    name: str, before: Config | None, after: Config | None, under: str = "", **more: Any
) -> Pair:
    """Return an update of the first unit, which both configs admit if the name begins with
    ``healthy``.

    Args:
        name: the update's name.
        before: config A.
        after: config B.
        under: otherwise, a ``+`` for each config that admits the unit, and a ``-`` for each that
            doesn't.
        more: more of ``Pair``.
    """
    is_admitted = [sign == "+" for sign in under] if under else [name.startswith("healthy")] * 2
    return Pair(name, before, after, {MACHINE: (is_admitted[0], is_admitted[1])}, **more)


def _passing(name: str, before: Config, update: Make, first: Make | None = None) -> Pair:
    return _pair(name, before, before, first=first, passing=update)


def trying(config: Config) -> Make:
    """Return a factory for a task that tries a config's routes."""
    return lambda host: TryRoutes(config, _TRIAL_SECONDS, host=host)


def confirming(host: Host) -> Task[object]:
    """Return a task that confirms the current trial."""
    return ConfirmTrial(host=host)


def losing(host: Host) -> Task[object]:
    """Return a task that removes our routes and rules, like a network manager might."""
    backends = host.backends([*Family])

    def lose(_: CancelScope) -> None:
        for backend in backends:
            policy = read_policy(backend)
            backend.write_rules(Write.DELETE, policy.rules)
            backend.write(Write.DELETE, [*policy.routes, *read_our_routes(backend)])

    return task("lose")(lose)


def running_go_package(host: Host) -> Task[object]:
    """Return a task that installs the Go package's files, and its routes through a gateway that has
    moved since.
    """
    rows = [f"{destination}|{ANY}|0" for destination in (X, Y)]
    moved = NextHop("eth0", IPv4Address("10.1.0.99"))
    routes = [
        Route(IPv4Network(destination), (moved,), protocol=Protocol.BOOT) for destination in (X, Y)
    ]
    return task("go-package")(
        lambda _: (write_go_package(host.layout, *rows), host.routes.write(Write.ADD, routes))
    )


def adding_default(host: Host) -> Task[object]:
    """Return a task that adds a default route that wins, as a VPN or a second NIC's lease does."""
    hop = NextHop("ib0", IPv4Address("172.16.0.1"))
    route = Route(DEFAULT_DESTINATION, (hop,), protocol=Protocol.STATIC)
    return task("add-default")(lambda _: host.routes.write(Write.ADD, [route]))


def looking(config: Config) -> Make:
    """Return a factory for a task that runs a single iteration of the watcher."""

    def make(host: Host) -> Task[object]:
        watched = WatchHostRouting(
            read=lambda: config, host=host, say=lambda _: None, tell=lambda _: None
        )
        return task("look")(lambda scope: _Watch(watched, scope, config, seen=()).look())

    return make


_GOOD, _BAD = _config([X], [X]), _config([Z], [X])
_GOOD_WARN, _BAD_WARN = _config([X], [X], "WARN"), _config([Z], [X], "WARN")
_MORE = _config([X], [X, SERVICES])
_GOOD6, _EITHER = _config([X6], [X6]), _config([X, X6], [X, X6])
_RULES = ({"to": SERVICES, "priority": 5269}, {"to": Y6, "priority": 5269})
_KEPT = _config([X], [X], rules=_RULES, keep=["ib0"])
_KEPT_WIDER = _config(
    [X, Z],
    [X],
    rules=[{"to": SERVICES, "priority": 5270}, {"to": Z, "priority": 2173}],
    keep=[{"dev": "ib0", "gateway": "172.16.0.1"}],
)
_KEPT_BAD = _config([Z], [X], rules=_RULES, keep=["ib0"])
_NOTHING = Config()
_BOTH = {MACHINE: (True, True), KUBELET: (True, True)}
_ONE_OF_TWO = {MACHINE: (False, True), KUBELET: (True, False)}

PAIRS = (
    # Healthy with both configs: the gate must never block these nodes.
    _pair("healthy, first install", None, _GOOD),
    _pair("healthy, route added", _GOOD, _config([X, Z], [X])),
    _pair("healthy, route dropped", _config([X, Z], [X]), _GOOD),
    _pair("healthy, route split", _GOOD, _config(X_HALVES, [X])),
    _pair("healthy, routes joined", _config(X_HALVES, [X]), _GOOD),
    _pair("healthy, route widened", _GOOD, _config([X_WIDER], [X])),
    _pair("healthy, metric changed", _GOOD, _config([{"destination": X, "metric": 50}], [X])),
    _pair("healthy, routes and CIDRs swapped", _GOOD, _config([Y], [Y])),
    _pair("healthy, CIDRs changed", _config([X, Y], [X]), _config([X, Y], [Y, SERVICES])),
    _pair("healthy, routes emptied", _config([X], [X, SERVICES]), _config([], [SERVICES])),
    _pair("healthy, routes begun", _config([], [SERVICES]), _config([X], [X, SERVICES])),
    _pair("healthy, check emptied", _GOOD, _config([X])),
    _pair("healthy, check begun", _config([X]), _GOOD),
    _pair("healthy, routes for a check", _config([X]), _config([], [SERVICES])),
    _pair("healthy, all emptied", _GOOD, _NOTHING),
    _pair("healthy, removed", _GOOD, None),
    _pair("healthy, applied again", _GOOD, _GOOD),
    _pair("healthy, WARN to STRICT", _GOOD_WARN, _GOOD),
    _pair("healthy, STRICT to WARN", _GOOD, _GOOD_WARN),
    _pair("healthy, swapped and watched", _GOOD, _config([Y], [Y], watch={"enabled": True})),
    _pair("WARN and shadowed, swapped", _config([Y], [X], "WARN"), _config([X], [Y], "WARN"), "++"),
    attrs.evolve(
        _pair("healthy, consumer changed", _GOOD, _config([X], [X], consumer=KUBELET)), starts=_BOTH
    ),
    # Shadowed with both configs: the gate must never admit these nodes.
    _pair("shadowed, route added", _config([], [X]), _BAD),
    _pair("shadowed, route dropped", _BAD, _config([], [X])),
    _pair("shadowed, CIDRs changed", _BAD, _config([Z], [Y, SERVICES])),
    _pair("shadowed, routes and CIDRs crossed", _config([Y], [X]), _config([X], [Y])),
    _pair("shadowed, routes emptied", _config([Y], [X]), _config([], [Y])),
    _pair("shadowed, routes begun", _config([], [Y]), _config([Y], [X])),
    _pair("shadowed, applied again", _BAD, _BAD),
    _pair(
        "shadowed, crossed and watched",
        _config([Y], [X]),
        _config([X], [Y], watch={"enabled": True}),
    ),
    # The consumer changes. The gate must never admit both units at the same time.
    attrs.evolve(
        _pair("shadowed, consumer changed", _BAD, _config([Z], [X], consumer=KUBELET)),
        starts=_ONE_OF_TWO,
    ),
    # The decision changes, and either one is acceptable during the update.
    _pair("shadowed, first install", None, _BAD, "+-"),
    _pair("shadowed, WARN to STRICT", _BAD_WARN, _BAD, "+-"),
    _pair("shadowed, STRICT to WARN", _BAD, _BAD_WARN, "-+"),
    _pair("shadowed, fixed", _config([], [X]), _GOOD, "-+"),
    _pair("healthy, broken", _GOOD, _config([], [X]), "+-"),
    _pair("shadowed, check emptied", _BAD, _config([Z]), "-+"),
    _pair("shadowed, all emptied", _BAD, _NOTHING, "-+"),
    _pair("shadowed, removed", _BAD, None, "-+"),
    # These updates only change the kernel's routes temporarily, or restore them.
    _passing("shadowed, fixed on trial", _config([], [X]), trying(_GOOD)),
    _passing("shadowed, fixed beside a route", _BAD, trying(_GOOD)),
    _passing("shadowed, tried without effect", _config([], [X]), trying(_config([X], [X, Y]))),
    _passing("healthy, route tried", _GOOD, trying(_config([X, Z], [X]))),
    _passing("healthy, broken on trial", _GOOD, trying(_config([Z], [Z]))),
    _passing("healthy, trial confirmed", _GOOD, confirming, first=trying(_config([X, Z], [X]))),
    _passing("healthy, route lost and watched", _GOOD, looking(_GOOD), first=losing),
    _passing("shadowed, route lost and watched", _BAD, looking(_BAD), first=losing),
    # The Go package's routes change hands.
    _pair("healthy, from the Go package", None, _GOOD, first=running_go_package),
    _pair("shadowed, from the Go package", None, _BAD, "+-", first=running_go_package),
    # Another default route wins since the check has passed, and the verified uplink stays.
    _pair("healthy, uplink verified", _GOOD, _config([X, Z], [X]), first=adding_default),
    _pair("shadowed, uplink verified", _MORE, _config([X, Z], [X, SERVICES]), first=adding_default),
    _pair("healthy, IPv6 begun", _GOOD, _EITHER),
    _pair("healthy, IPv6 dropped", _EITHER, _GOOD),
    _pair("healthy, IPv6 swapped", _GOOD6, _config([Y6], [Y6])),
    _pair("healthy, other family", _GOOD, _GOOD6),
    _pair("shadowed, IPv6 crossed", _config([X, Y6], [X, X6]), _config([X, X6], [X, Y6])),
    _passing("shadowed, IPv6 fixed on trial", _config([X], [X, X6]), trying(_EITHER)),
    _passing("healthy, IPv6 broken on trial", _EITHER, trying(_config([X, Y6], [X, Y6]))),
    _passing("healthy, both families lost", _EITHER, looking(_EITHER), first=losing),
    # Rules and kept interfaces come, change and go.
    _pair("healthy, kept", _GOOD, _KEPT),
    _pair("healthy, kept otherwise", _KEPT, _KEPT_WIDER),
    _pair("healthy, not kept any more", _KEPT_WIDER, _GOOD),
    _pair("healthy, kept and removed", _KEPT, None),
    _pair("healthy, kept and swapped", _KEPT, _config([Y], [Y], rules=_RULES, keep=["ib*"])),
    _pair("shadowed, kept", _BAD, _KEPT_BAD),
    _passing("healthy, kept on trial", _GOOD, trying(_KEPT_WIDER)),
    _passing("healthy, kept otherwise on trial", _KEPT, trying(_KEPT_WIDER)),
    _passing("healthy, kept, lost and watched", _KEPT, looking(_KEPT), first=losing),
    _passing("shadowed, kept, lost and watched", _KEPT_BAD, looking(_KEPT_BAD), first=losing),
    # The same without Python.
    _pair(
        "healthy, uplink verified, by script",
        _GOOD,
        _config([Y], [Y]),
        first=adding_default,
        script="install.sh",
    ),
    _pair(
        "shadowed, uplink verified, by script",
        _MORE,
        _config([X, Z], [X, SERVICES]),
        first=adding_default,
        script="install.sh",
    ),
    _pair("healthy, installed by script", None, _GOOD, script="install.sh"),
    _pair("healthy, swapped by script", _GOOD, _config([Y], [Y]), script="install.sh"),
    _pair("healthy, removed by script", _GOOD, None, script="remove.sh"),
    _pair("shadowed, crossed by script", _config([Y], [X]), _config([X], [Y]), script="install.sh"),
    _pair(
        "shadowed, IPv6 crossed by script",
        _config([X, Y6], [X, X6]),
        _config([X, X6], [X, Y6]),
        script="install.sh",
    ),
    _pair("shadowed, removed by script", _BAD, None, "-+", script="remove.sh"),
    _pair("healthy, kept by script", _GOOD, _KEPT, script="install.sh"),
    _pair("healthy, kept otherwise by script", _KEPT, _KEPT_WIDER, script="install.sh"),
    _pair("healthy, kept and removed by script", _KEPT_WIDER, None, script="remove.sh"),
)

# This update isn't safe, so the search must find counterexamples.
TWO_STEPS = _pair("swapped by two tasks", _GOOD, _config([Y], [Y]), "++", is_one_step=False)
