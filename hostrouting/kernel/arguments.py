"""Raise a ``TypeError`` for a backend's arguments, methods or results that don't fit the port."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from contextlib import AbstractContextManager
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any

from hostrouting.kernel.port import Facts, RouteBackend, Write
from hostrouting.kernel.selection import Entries
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.lookups import Lookup, RouteFailure, RuleFailure
from hostrouting.model.routes import Route
from hostrouting.model.rules import Rule
from hostrouting.model.text import shown

_NETWORKS: dict[Family, type] = {Family.IPV4: IPv4Network, Family.IPV6: IPv6Network}
_ADDRESSES: dict[Family, type] = {Family.IPV4: IPv4Address, Family.IPV6: IPv6Address}

_RETURNED: dict[str, tuple[type, str]] = {
    "facts": (Facts, "Facts"),
    "entries": (Entries, "Entries, such as wanted.filter(routes)"),
    "lookup": (tuple, "a tuple of Lookup, one for each address"),
    "sources": (tuple, "a tuple of tuples of addresses, one for each entry"),
    "write": (tuple, "a tuple of RouteFailure, which is empty if none failed"),
    "write_rules": (tuple, "a tuple of RuleFailure, which is empty if none failed"),
    "changes": (AbstractContextManager, "a context manager, which yields a ChangeListener"),
}
_ELEMENTS: dict[str, type] = {
    "lookup": Lookup,
    "sources": tuple,
    "write": RouteFailure,
    "write_rules": RuleFailure,
}


def check_routes(change: Write, routes: Sequence[Route], family: Family) -> None:
    """Raise a ``TypeError`` unless ``change`` is a ``Write``, and each route is of the family."""
    _check_change(change)
    network = _NETWORKS[family]
    for route in _listed(routes, "routes"):
        # IPv6 routes have the class Route6.
        if not isinstance(route, Route) or route.family is not family:
            name = "Route" if family is Family.IPV4 else "Route6"
            raise TypeError(f"expected a {name}, not {shown(route)}")
        if not isinstance(route.destination, network):
            raise TypeError(
                f"expected an {network.__name__} as a route's destination, "
                f"not {shown(route.destination)}"
            )


def check_rules(change: Write, rules: Sequence[Rule]) -> None:
    """Raise a ``TypeError`` unless ``change`` is a ``Write``, and each rule is a ``Rule``."""
    _check_change(change)
    for rule in _listed(rules, "rules"):
        if not isinstance(rule, Rule):
            raise TypeError(f"expected a Rule, not {shown(rule)}")


def check_addresses(addresses: Sequence[IpAddress], family: Family) -> None:
    """Raise a ``TypeError`` unless each address is of the family."""
    kind = _ADDRESSES[family]
    for address in _listed(addresses, "addresses"):
        if not isinstance(address, kind):
            raise TypeError(f"expected an {kind.__name__}, not {shown(address)}")


def _check_change(change: Write) -> None:
    if not isinstance(change, Write):
        raise TypeError(f"expected Write.ADD, Write.REPLACE or Write.DELETE, not {shown(change)}")


def _listed(values: Any, what: str) -> Iterable[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"expected a list of {what}, not {shown(values)}")
    return values


def check_methods(value: object, port: type, argument: str) -> None:
    """Raise a ``TypeError`` unless an object has all attributes of a port.

    Args:
        value: the object to check.
        port: the protocol class that the object must implement.
        argument: the call that takes the object, such as ``pair()``, for the message.
    """
    if isinstance(value, type):
        raise TypeError(f"{argument} takes an object, not the class {value.__name__}: call it")
    # A class that derives from the port inherits the port's methods, which have no code.
    names = [name for name in dir(port) if not name.startswith("_")]
    missing = [name for name in names if _lacks(value, name, getattr(port, name))]
    if missing == names:
        raise TypeError(f"{argument} takes a {port.__name__}, not {shown(value)}")
    if missing:
        raise TypeError(
            f"{argument} takes a {port.__name__}; {type(value).__name__} lacks {', '.join(missing)}"
        )


def check_backend(value: RouteBackend, port: type, family: Family, argument: str) -> None:
    """Raise a ``TypeError`` unless an object has all attributes of a port, and is of a family."""
    check_methods(value, port, argument)
    if value.family is not family:
        raise TypeError(
            f"{argument} takes a backend for {family}, not for {value.family}: {shown(value)}"
        )


def _lacks(value: object, name: str, declared: object) -> bool:
    found = getattr(type(value), name, None)
    return found is declared or (found is None and not hasattr(value, name))


def check_returned(backend: object, method: str, value: object, asked: object = None) -> None:
    """Raise a ``TypeError`` if a backend's method has returned another type than the port says.

    The entries of a table aren't checked, because there may be a million.

    Args:
        backend: the backend, whose class the error names.
        method: the name of the backend's method.
        value: the value that the method has returned.
        asked: the first argument of ``lookup`` or ``sources``, which must have returned one item
            for each of the argument's items. Ignored for other methods.
    """
    found = _mismatch(method, value, asked)
    if found:
        name = f"{type(backend).__name__}.{method}"
        raise TypeError(f"{name} returned {found}; expected {_RETURNED[method][1]}")


def _mismatch(method: str, value: object, asked: object) -> str:
    """Return a phrase about a returned value that has a wrong type, or an empty string."""
    if not isinstance(value, _RETURNED[method][0]):
        return "None" if value is None else shown(value)
    if not isinstance(value, tuple):
        return ""
    for each in value:
        if not isinstance(each, _ELEMENTS[method]) or not _is_complete(each):
            return f"a tuple with {shown(each)}"
    if method in ("lookup", "sources") and isinstance(asked, Sized) and len(asked) != len(value):
        return f"a tuple of {len(value)} for {len(asked)}"
    if method == "lookup" and isinstance(asked, Iterable):
        for each, address in zip(value, asked, strict=True):
            if each.address != address:
                return f"a lookup of {each.address} for {address}"
    return ""


def _is_complete(element: Any) -> bool:
    """Return whether the fields of a failure have the right types; True for any other element."""
    if not isinstance(element, RouteFailure | RuleFailure):
        return True
    kinds = (Route if isinstance(element, RouteFailure) else Rule, int, str, bool)
    fields: tuple[object, ...] = element
    return all(isinstance(field, kind) for field, kind in zip(fields, kinds, strict=True))
