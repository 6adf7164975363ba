"""The state that an update can change on a host: files, our routes of both families, and those of
the Go package.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import attrs
from file_trees import Entry, read_trees, restore_trees

from hostrouting.kernel.netlink import NetlinkBackend
from hostrouting.kernel.netlink6 import NetlinkBackend6
from hostrouting.kernel.port import Write, read_routes
from hostrouting.model.routes import Protocol, Route, Table

PLACES = [
    Path("/etc", name) for name in ("aks-flex-node", "hostrouting", "systemd/system", "iproute2")
]
BACKENDS = (NetlinkBackend(), NetlinkBackend6())


@attrs.frozen
class HostState:
    """The installed files, the files in /run, which don't count in comparisons, and the routes."""

    files: Mapping[str, Entry]
    run: Mapping[str, Entry] = attrs.field(eq=False)
    routes: frozenset[Route] = attrs.field(factory=lambda: frozenset(our_routes()))

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
        ]

    def restore(self, there: HostState) -> None:
        """Restore this state on a host whose state is ``there``."""
        restore_trees(self.files, dict(there.files))
        restore_trees(self.run, dict(there.run))
        delete_routes(there.routes - self.routes)
        for backend in BACKENDS:
            assert (
                backend.write(
                    Write.ADD,
                    [
                        route
                        for route in self.routes - there.routes
                        if route.family is backend.family
                    ],
                )
                == ()
            )


def our_routes() -> list[Route]:
    main = (route for backend in BACKENDS for route in read_routes(backend, Table.MAIN))
    return [
        route
        for route in main
        if route.is_ours or (route.protocol == Protocol.BOOT and route.destination.prefixlen)
    ]


def delete_routes(routes: Collection[Route]) -> None:
    for backend in BACKENDS:
        assert (
            backend.write(
                Write.DELETE, [route for route in routes if route.family is backend.family]
            )
            == ()
        )
