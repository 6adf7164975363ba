"""Pure: a recorded host as one JSON document, in the shape of what ``ip -j -N`` prints.

::

    {"schema": 1, "time": "2026-11-20T09:00:00Z", "kernel": "Linux 6.18.44",
     "links":     what `ip -j -N -d link show` prints,
     "addresses":      `ip -j -N -d -4 address show`,
     "rules":          `ip -j -N -d -4 rule show`,
     "routes":         `ip -j -N -d -4 route show table all`,
     "nexthops":       `ip -j -N -d nexthop show`,
     "nameservers": ["10.0.0.10"]}

Only links, addresses, rules and routes must be there. We write the keys that our values come from, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from hostrouting.config.schema import below, each, kind
from hostrouting.kernel._ip_read import read_addresses, read_link, read_nexthop, read_route, read_rule
from hostrouting.kernel._ip_write import write_addresses, write_link, write_nexthop, write_route, write_rule
from hostrouting.model.errors import ConfigError
from hostrouting.model.parsing import parse_address
from hostrouting.model.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from ipaddress import IPv4Address

    from hostrouting.model.links import Address, Link
    from hostrouting.model.routes import NexthopObject, Route
    from hostrouting.model.rules import Rule

__all__ = ["SNAPSHOT_SCHEMA", "Snapshot"]

SNAPSHOT_SCHEMA = 1

T = TypeVar("T")


@attrs.frozen
class Snapshot:
    """A host's links, addresses, rules and routes as they were at some time.

    Args:
        links: by index.
        addresses: IPv4.
        rules: in the order in which the kernel asks them.
        routes: the entries of every table, in the kernel's order.
        nexthops: the objects that routes name.
        nameservers: that the host asks, IPv4.
        time: RFC 3339, UTC, in seconds; None: not known.
        kernel: name and release; None: not known.
    """

    links: tuple[Link, ...]
    addresses: tuple[Address, ...]
    rules: tuple[Rule, ...]
    routes: tuple[Route, ...]
    nexthops: tuple[NexthopObject, ...] = ()
    nameservers: tuple[IPv4Address, ...] = ()
    time: str | None = None
    kernel: str | None = None

    @classmethod
    def from_document(cls, document: object) -> Snapshot:
        """Read a document that ``to_document`` or ip has made; keys that aren't known are passed over.

        Args:
            document: as ``json.load`` gives it.

        Returns:
            The snapshot.

        Raises:
            ConfigError: it isn't one: with all problems, each with its path, like ``routes[3].gateway``.
        """
        if not isinstance(document, Mapping):
            message = f"expected an object with the lists links, addresses, rules and routes, not {kind(document)}"
            raise ConfigError([("", message)])
        reader = _Reader(document)
        snapshot = cls(
            links=reader.list("links", read_link),
            addresses=tuple(address for found in reader.list("addresses", read_addresses) for address in found),
            rules=reader.list("rules", read_rule),
            routes=reader.list("routes", read_route),
            nexthops=reader.list("nexthops", read_nexthop, is_required=False),
            nameservers=reader.list("nameservers", parse_address, is_required=False),
            time=reader.text("time"),
            kernel=reader.text("kernel"),
        )
        if reader.problems:
            raise ConfigError(reader.problems)
        return snapshot

    def to_document(self) -> dict[str, Any]:
        """The document that ``from_document`` reads back as this snapshot."""
        return {
            "schema": SNAPSHOT_SCHEMA,
            **({} if self.time is None else {"time": self.time}),
            **({} if self.kernel is None else {"kernel": self.kernel}),
            "links": [write_link(link) for link in self.links],
            "addresses": write_addresses(self.addresses),
            "rules": [write_rule(rule) for rule in self.rules],
            "routes": [write_route(route) for route in self.routes],
            "nexthops": [write_nexthop(nexthop) for nexthop in self.nexthops],
            "nameservers": [str(nameserver) for nameserver in self.nameservers],
        }

    def to_text(self) -> str:
        """The document as JSON, an item a line, so that two of them can be compared."""
        parts = (f'"{key}": {_to_json(value)}' for key, value in self.to_document().items())
        return "{" + ",\n ".join(parts) + "}\n"


def _to_json(value: object) -> str:
    if isinstance(value, list) and value:
        return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
    return json.dumps(value)


class _Reader:
    """The lists of a document; what is wrong with them is collected."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self.problems: list[tuple[str, str]] = []
        schema = document.get("schema", SNAPSHOT_SCHEMA)
        if schema != SNAPSHOT_SCHEMA or isinstance(schema, bool):
            message = f"{shown(schema)} is not a schema that is known here; expected {SNAPSHOT_SCHEMA}"
            self.problems.append(("schema", message))

    def list(self, key: str, parse: Callable[[object], T], *, is_required: bool = True) -> tuple[T, ...]:
        items = self._document.get(key)
        if items is None:
            if is_required:
                self.problems.append((key, "is missing"))
            return ()

        def parse_item(item: object) -> tuple[T, ...]:
            # Some versions of ip leave {} where an interface has nothing to show.
            return () if item == {} else (parse(item),)

        try:
            return tuple(value for found in each(items, parse_item) for value in found)
        except ConfigError as error:
            self.problems += below(key, error.problems)
        except ValueError as error:
            self.problems.append((key, str(error)))
        return ()

    def text(self, key: str) -> str | None:
        value = self._document.get(key)
        if value is None or isinstance(value, str):
            return value
        self.problems.append((key, f"expected a string, not {kind(value)}"))
        return None
