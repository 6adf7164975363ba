"""The state that an update can change on a host: files, our routes and rules of both families, and
the routes of the Go package. A later default route, of protocol static, is a part of it, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import attrs
from file_trees import Entry, read_trees, restore_trees

from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.port import Write, read_routes
from hostrouting.model.routes import Protocol, Route, Table
from hostrouting.model.rules import Rule, rule_words
from hostrouting.routes.install import by_gateways
from hostrouting.routes.plan import read_policy

PLACES = [
    Path("/etc", name) for name in ("aks-flex-node", "hostrouting", "systemd/system", "iproute2")
]
BACKENDS = (NetlinkBackend(), NetlinkBackend6())


@attrs.frozen
class HostState:
    """The installed files, the files in /run, which don't count in comparisons, the routes, and the
    rules of each family.
    """

    files: Mapping[str, Entry]
    run: Mapping[str, Entry] = attrs.field(eq=False)
    routes: frozenset[Route] = attrs.field(factory=lambda: frozenset(our_routes()))
    rules: tuple[tuple[Rule, ...], ...] = attrs.field(factory=lambda: our_rules())

    @classmethod
    def read(cls, run: Path) -> HostState:
        return cls(read_trees(*PLACES), read_trees(run))

    def differences(self, other: HostState) -> list[str]:
        """Return the installed files and the routes that differ between two states."""
        names = [
            name
            for name in sorted({*self.files, *other.files})
            if self.files.get(name) != other.files.get(name)
        ]
        return [
            *names,
            *sorted(
                f"{route.destination} metric {route.metric}" for route in self.routes ^ other.routes
            ),
            *(
                f"{' and '.join(map(rule_words, some)) or 'no rules'}"
                for pair in zip(self.rules, other.rules, strict=True)
                for some in pair
                if pair[0] != pair[1]
            ),
        ]

    def restore(self, there: HostState) -> None:
        """Restore this state on a host whose state is ``there``."""
        restore_trees(self.files, dict(there.files))
        restore_trees(self.run, dict(there.run))
        delete_rules(there.rules)
        delete_routes(there.routes - self.routes)
        for backend, rules in zip(BACKENDS, self.rules, strict=True):
            missing = self.routes - there.routes
            routes = by_gateways([route for route in missing if route.family is backend.family])
            assert backend.write(Write.ADD, routes) == ()
            assert backend.write_rules(Write.ADD, rules) == ()


def our_routes() -> list[Route]:
    main = (route for backend in BACKENDS for route in read_routes(backend, Table.MAIN))
    side = (route for backend in BACKENDS for route in read_policy(backend).routes)
    return [
        *side,
        *(
            route
            for route in main
            if route.is_ours or is_later_default(route) or _is_of_go_package(route)
        ),
    ]


def is_later_default(route: Route) -> bool:
    return route.destination.prefixlen == 0 and route.protocol == Protocol.STATIC


def _is_of_go_package(route: Route) -> bool:
    return route.destination.prefixlen > 0 and route.protocol == Protocol.BOOT


def our_rules() -> tuple[tuple[Rule, ...], ...]:
    """Return our rules of each family, in the kernel's order only as far as it matters."""

    def key(rule: Rule) -> tuple[int, str, str]:
        return rule.preference, str(rule.source), str(rule.destination)

    return tuple(tuple(sorted(read_policy(backend).rules, key=key)) for backend in BACKENDS)


def delete_rules(rules: Iterable[Sequence[Rule]]) -> None:
    """Delete rules of each family."""
    for backend, some in zip(BACKENDS, rules, strict=True):
        assert backend.write_rules(Write.DELETE, some) == ()


def delete_routes(routes: Collection[Route]) -> None:
    for backend in BACKENDS:
        assert (
            backend.write(
                Write.DELETE, [route for route in routes if route.family is backend.family]
            )
            == ()
        )
