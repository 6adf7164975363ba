"""The results of lookups, and routes and rules that the kernel refused."""

from __future__ import annotations

import errno as errnos
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.model.integer_prefixes import Prefix, numbers
from hostrouting.model.routes import Route, RouteType
from hostrouting.model.rules import Rule

# For routes, see fib_props in net/ipv4/fib_semantics.c; for rules, see fib4_rule_action.
ERRNO_OF_TYPE = {
    RouteType.BLACKHOLE: errnos.EINVAL,
    RouteType.UNREACHABLE: errnos.EHOSTUNREACH,
    RouteType.PROHIBIT: errnos.EACCES,
}
_TYPE_OF_ERRNO = {errno: kind for kind, errno in ERRNO_OF_TYPE.items()}


class Lookup:
    """The kernel's result of a route lookup for an unmarked packet that this host sends.

    Args:
        address: the packet's destination.
        route: the matching entry with all its hops, as returned for RTM_F_FIB_MATCH. None if the
            packet isn't sent.
        errno: why the packet isn't sent; None if it is.
    """

    def __init__(self, address: IpAddress, route: Route | None, errno: int | None = None) -> None:
        self.address = address
        self.errno = errno
        self._copy: Callable[[IpNetwork], Route] | None = None
        self.__dict__["route"] = route

    @classmethod
    def of_template(
        cls,
        address: IpAddress,
        template: Route,
        prefix: Prefix,
        copy: Callable[[IpNetwork], Route],
    ) -> Lookup:
        """Return a lookup whose ``route`` is made on first access.

        Args:
            address: the packet's destination.
            template: a route with all attributes of the matching entry except its destination.
            prefix: the destination of the matching entry.
            copy: a function that copies the template with another destination.
        """
        lookup = cls.__new__(cls)
        lookup.__dict__.update(
            address=address,
            errno=None,
            entry=(template, prefix),
            _copy=copy,
        )
        return lookup

    @cached_property
    def route(self) -> Route | None:
        """Return the matching entry, or None."""
        if self.entry is None or self._copy is None:
            return None
        template, prefix = self.entry
        return self._copy(type(template.destination)(prefix))

    @cached_property
    def entry(self) -> tuple[Route, Prefix] | None:
        """Return the matching entry as a pair of a template and the entry's own prefix, or None.

        The template is a route with all attributes of the entry except its destination.
        """
        return None if self.route is None else (self.route, numbers(self.route.destination))

    @property
    def discarded_by(self) -> RouteType | None:
        """Return the type of the discarding routes for which a lookup has this errno, or None."""
        return None if self.errno is None else _TYPE_OF_ERRNO.get(self.errno)

    def __reduce__(self) -> tuple[type[Lookup], tuple[IpAddress, Route | None, int | None]]:
        # The function of ``of_template`` can't be pickled.
        return Lookup, (self.address, self.route, self.errno)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Lookup):
            return NotImplemented
        return (self.address, self.errno, self.route) == (other.address, other.errno, other.route)

    def __hash__(self) -> int:
        return hash((self.address, self.errno, self.route))

    def __repr__(self) -> str:
        return f"Lookup({self.address!r}, {self.route!r}, {self.errno!r})"


class RouteFailure(NamedTuple):
    """A route that the kernel, or a backend itself, refused during a bulk call.

    Args:
        route: the route as passed by the caller.
        errno: the errno returned by the kernel. A backend that refuses a route itself sets
            EOPNOTSUPP or ECANCELED. Other numbers would lead to wrong advice: EPERM and EACCES say
            that the program needs root; EEXIST, ESRCH, EHOSTUNREACH and ENOTRECOVERABLE say that
            other routes are in the way or missing.
        message: the kernel's extended ACK message, or a description of the errno.
        is_by_kernel: whether the kernel wrote the message. An error about a backend's message gives
            no advice about the kernel.
    """

    route: Route
    errno: int
    message: str
    is_by_kernel: bool = True


class RuleFailure(NamedTuple):
    """A policy rule that the kernel, or a backend itself, refused during a bulk call.

    Args:
        rule: the rule as passed by the caller.
        errno: see ``RouteFailure``.
        message: the kernel's extended ACK message, or a description of the errno.
        is_by_kernel: see ``RouteFailure``.
    """

    rule: Rule
    errno: int
    message: str
    is_by_kernel: bool = True
