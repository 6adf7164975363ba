"""Type checks of attributes, with errors that name the expected types.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from hostrouting.model.text import shown

Types = tuple[type, ...]

ADDRESS: Types = (IPv4Address, IPv6Address)
NETWORK: Types = (IPv4Network, IPv6Network)
NONE: Types = (type(None),)
TUPLE: Types = (tuple,)


def check_fields(value: object, types: Mapping[str, Types]) -> None:
    """Raise a ``TypeError`` if a field of a value is of none of the types listed for the field."""
    for name, allowed in types.items():
        found = getattr(value, name)
        if not isinstance(found, allowed):
            names = " or ".join("None" if each in NONE else each.__name__ for each in allowed)
            field = f"{type(value).__name__}.{name}"
            raise TypeError(f"expected {names} as {field}, not {shown(found)}")
