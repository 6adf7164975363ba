"""The results of lookups, and routes that the kernel refused."""

from __future__ import annotations

import errno as errnos
from collections.abc import Callable
from typing import NamedTuple

from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.model.integer_prefixes import Prefix, numbers
from hostrouting.model.routes import Route, RouteType

# Taken from fib_props in net/ipv4/fib_semantics.c and, for rules, from fib4_rule_action.
ERRNO_OF_TYPE = {
    RouteType.BLACKHOLE: errnos.EINVAL,
    RouteType.UNREACHABLE: errnos.EHOSTUNREACH,
    RouteType.PROHIBIT: errnos.EACCES,
}
_TYPE_OF_ERRNO = {errno: kind for kind, errno in ERRNO_OF_TYPE.items()}


class Lookup:
    """The kernel's result for a lookup of ``address``, for an unmarked packet sent by this host.

    Args:
        address: the looked-up destination.
        route: the matching entry with all its hops, as returned for RTM_F_FIB_MATCH, or None.
        errno: the errno if there is no route, or None.
    """

    __slots__ = ("_copy", "_entry", "_route", "address", "errno")

    def __init__(self, address: IpAddress, route: Route | None, errno: int | None = None) -> None:
        self.address, self.errno = address, errno
        self._route = route
        self._entry: tuple[Route, Prefix] | None = None
        self._copy: Callable[[IpNetwork], Route] | None = None

    @classmethod
    def of_template(
        cls,
        address: IpAddress,
        template: Route,
        prefix: Prefix,
        copy: Callable[[IpNetwork], Route],
    ) -> Lookup:
        """Return a result whose route is only made when it is asked for.

        Args:
            address: the looked-up destination.
            template: an entry like the matching one, with any destination.
            prefix: the destination of the matching entry.
            copy: a function that copies the template with another destination.
        """
        lookup = cls(address, None)
        lookup._entry, lookup._copy = (template, prefix), copy
        return lookup

    @property
    def route(self) -> Route | None:
        """The matching entry, or None."""
        if self._route is None and self._entry is not None and self._copy is not None:
            template, prefix = self._entry
            self._route = self._copy(type(template.destination)(prefix))
        return self._route

    @property
    def entry(self) -> tuple[Route, Prefix] | None:
        """The matching entry as a template, whose destination is a placeholder, and a prefix."""
        if self._entry is None and self._route is not None:
            return self._route, numbers(self._route.destination)
        return self._entry

    @property
    def discarded_by(self) -> RouteType | None:
        """The type of discard route that corresponds to the errno.

        It is None if there is a route or if nothing matches (ENETUNREACH).
        """
        return None if self.errno is None else _TYPE_OF_ERRNO.get(self.errno)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Lookup):
            return NotImplemented
        return (self.address, self.errno, self.route) == (other.address, other.errno, other.route)

    def __hash__(self) -> int:
        return hash((self.address, self.errno, self.route))

    def __repr__(self) -> str:
        return f"Lookup({self.address!r}, {self.route!r}, {self.errno!r})"


class RouteFailure(NamedTuple):
    """A route that the kernel refused during a bulk call.

    Args:
        route: the route as passed by the caller.
        errno: the errno returned by the kernel.
        message: the kernel's extended ACK message, or a description of the errno.
        is_by_kernel: whether the message is the kernel's, not the backend's.
    """

    route: Route
    errno: int
    message: str
    is_by_kernel: bool = True
