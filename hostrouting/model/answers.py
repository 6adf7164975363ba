"""The kernel's answers: lookup results and refused routes."""

from __future__ import annotations

import errno as errnos
from typing import NamedTuple

from hostrouting.model.family import IpAddress
from hostrouting.model.routes import Route, RouteType

# Taken from fib_props in net/ipv4/fib_semantics.c and, for rules, from fib4_rule_action.
ERRNO_OF_TYPE = {
    RouteType.BLACKHOLE: errnos.EINVAL,
    RouteType.UNREACHABLE: errnos.EHOSTUNREACH,
    RouteType.PROHIBIT: errnos.EACCES,
}
_TYPE_OF_ERRNO = {errno: kind for kind, errno in ERRNO_OF_TYPE.items()}


class Lookup(NamedTuple):
    """The kernel's result for a lookup of ``address``, for an unmarked packet sent by this host.

    Args:
        address: the looked-up destination.
        route: the matching entry with all its hops, as returned for RTM_F_FIB_MATCH, or None.
        errno: the errno if there is no route, or None.
    """

    address: IpAddress
    route: Route | None
    errno: int | None = None

    @property
    def discarded_by(self) -> RouteType | None:
        """The type of discard route that corresponds to the errno.

        It is None if there is a route or if nothing matches (ENETUNREACH).
        """
        return None if self.errno is None else _TYPE_OF_ERRNO.get(self.errno)


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
