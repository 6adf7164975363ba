"""Read and write snapshots of hosts, each as one JSON document in the format of ``ip -j -N``.

::

    {"schema": 1, "host": "node-7", "time": "2026-11-20T09:00:00Z",
     "kernel":    what `uname -sr` prints,
     "ip":             `ip -V`, which may be older than the kernel and omit selectors of rules,
     "links":     what `ip -j -N -d link show` prints,
     "addresses":      `ip -j -N -d -4 address show`,
     "rules":          `ip -j -N -d -4 rule show`,
     "routes":         `ip -j -N -d -4 route show table all`,
     "nexthops":       `ip -j -N -d nexthop show`,
     "nameservers": ["10.0.0.10"],
     "ignoringLinkdown": ["eth0"],    interfaces whose routes are ignored without a carrier (a sysctl),
     "managers": [{"name": "systemd-networkd", "devs": ["eth0"], "dropsRoutes": false}],    network managers
     "isTorn": true,                   the host changed while it was read
     "isMerged": true,                whether tables local and main are one, as they are until the first custom rule,
     "sources": [{...}, ...]}         routes, each with the sources of its connections if no other list shows them

Only links, addresses, rules and routes are required. The last two keys come from the kernel and not from ip. We write
only the keys that we read.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address
from itertools import chain
from pathlib import Path
from typing import Any

import attrs

from hostrouting.config.documents import parse_document, read_document
from hostrouting.config.schema import each, kind
from hostrouting.config.values import parse_boolean
from hostrouting.kernel._ip import (
    read_addresses,
    read_link,
    read_nexthop,
    read_route,
    read_rule,
    write_addresses,
    write_link,
    write_route,
    write_rule,
)
from hostrouting.kernel._items import NEEDED, Key, Keys
from hostrouting.kernel.managers import Manager
from hostrouting.kernel.nexthops import with_hops, with_shares
from hostrouting.kernel.rules import KERNEL_RULES
from hostrouting.model.errors import ConfigError, FileError
from hostrouting.model.links import Address, Link
from hostrouting.model.parsing import parse_address
from hostrouting.model.routes import Route
from hostrouting.model.rules import Rule
from hostrouting.model.text import shown

SNAPSHOT_SCHEMA = 1

# The name for standard input.
STDIN = "-"

_RELEASE = re.compile(r"\b([0-9]{1,4})\.([0-9]{1,4})")

# A million routes take 250 MB in the format of ip.
_BYTES_MAX = 1 << 30


@attrs.frozen
class Snapshot:
    """The links, addresses, rules and routes of a host at some time.

    Args:
        links: the links, by index.
        addresses: the IPv4 addresses.
        rules: the rules, in the order in which the kernel evaluates them.
        routes: the entries of every table, in the kernel's order, with the hops of nexthop objects.
        nameservers: the host's IPv4 DNS servers.
        host: the name of the host, or None if it is unknown.
        time: when the snapshot was taken, in RFC 3339 format, in UTC and in whole seconds, or None if that is unknown.
        kernel: the name and release of the kernel, or None if they are unknown.
        is_merged: whether tables local and main share one trie, or None if that is unknown.
        is_torn: whether the host changed while it was read, so that it may never have been in this state and isn't
            judged.
        sources: entries with the sources of connections through them and through entries with the same next hops.
            Sources that follow from addresses and entries aren't included.
        ignoring_linkdown: the interfaces with net.ipv4.conf.*.ignore_routes_with_linkdown, or None if they are unknown.
        managers: the network managers with the interfaces that they configure.
    """

    links: tuple[Link, ...]
    addresses: tuple[Address, ...]
    rules: tuple[Rule, ...]
    routes: tuple[Route, ...]
    nameservers: tuple[IPv4Address, ...] = ()
    host: str | None = None
    time: str | None = None
    kernel: str | None = None
    is_merged: bool | None = None
    is_torn: bool = False
    sources: tuple[tuple[Route, tuple[IPv4Address, ...]], ...] = ()
    ignoring_linkdown: tuple[str, ...] | None = None
    managers: tuple[Manager, ...] = ()

    @classmethod
    def from_document(cls, document: object) -> Snapshot:
        """Read a document from ``to_document`` or ip, ignoring unknown keys.

        Args:
            document: the document as ``json.load`` returns it.

        Returns:
            The snapshot.

        Raises:
            ConfigError: the document isn't a snapshot. The error has all problems with their paths, like
                ``routes[3].gateway``.
        """
        if not isinstance(document, Mapping):
            message = f"expected an object with the lists links, addresses, rules and routes, not {kind(document)}"
            raise ConfigError([("", message)])
        fields = _KEYS.read(document)
        if "schema" not in document:
            without = {link.name for link in fields["links"] if link.is_up and not link.has_carrier}
            fields["routes"] = tuple(with_shares(route, without.__contains__) for route in fields["routes"])
        if not ("schema" in document or _prints_all_selectors(fields["kernel"] or "", fields["ip"] or "")):
            rules = (rule if rule in KERNEL_RULES else attrs.evolve(rule, has_unknown=True) for rule in fields["rules"])
            fields["rules"] = tuple(rules)
        del fields["schema"], fields["ip"]
        if nexthops := {nexthop.id: nexthop for nexthop in fields.pop("nexthops")}:
            fields["routes"] = tuple(with_hops(route, lambda: nexthops) for route in fields["routes"])
            fields["sources"] = tuple((with_hops(route, lambda: nexthops), own) for route, own in fields["sources"])
        fields["addresses"] = tuple(chain.from_iterable(fields["addresses"]))
        return cls(**fields)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, bytes_max: int = _BYTES_MAX) -> Snapshot:
        """Read a file from ``save``, from ``hostrouting snapshot`` or from a shell script that uses ip.

        Args:
            path: the path of the file, or ``-`` for standard input.
            bytes_max: the maximum size of the file in bytes.

        Returns:
            The snapshot. If the document has no host name, the name of the file without ``.json`` is used.

        Raises:
            ConfigError: there is no such file, or it isn't a snapshot.
            FileError: the file can't be read.
        """
        if path != STDIN:
            document = read_document(path, "snapshot", bytes_max=bytes_max)
            # A made-up file name could forge lines of a report.
            name = "?".join(Path(path).name.removesuffix(".json").splitlines())
        else:
            document = _read_stdin(bytes_max)
            name = "standard input"
        loaded = cls.from_document(document)
        return loaded if loaded.host else attrs.evolve(loaded, host=name)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file for ``load`` and ``--snapshot``, either completely or not at all.

        Args:
            path: the path of the file. An existing file is replaced.

        Raises:
            FileError: the file can't be written. An existing file is unchanged.
        """
        target = Path(path)
        part = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            try:
                part.write_text(self.to_text(), encoding="ascii")
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)
        except OSError as error:
            raise FileError.of(f"write the snapshot {target}", error) from error

    def to_document(self) -> dict[str, Any]:
        """Return a document that ``from_document`` reads as this snapshot."""
        # The routes already include the hops of nexthop objects.
        fields = {**attrs.asdict(self, recurse=False), "schema": SNAPSHOT_SCHEMA, "ip": None, "nexthops": ()}
        return _KEYS.write(fields)

    def to_text(self) -> str:
        """Return the document as JSON with one item per line, so that two documents can be compared."""
        parts = (f'"{key}": {_to_json(value)}' for key, value in self.to_document().items())
        return "{" + ",\n ".join(parts) + "}\n"


def _prints_all_selectors(kernel: str, ip: str) -> bool:
    """Return whether ip prints every selector that rules in the kernel may have.

    The releases of ip follow those of the kernel. Older versions of ip already print all selectors up to Linux 6.12.
    """
    release, printer = _RELEASE.search(kernel), _RELEASE.search(ip.partition("iproute2-")[2])
    if release is None:
        return False
    number = tuple(map(int, release.groups()))
    return number < (6, 13) or (printer is not None and tuple(map(int, printer.groups())) >= number)


def _read_stdin(bytes_max: int) -> Any:
    if sys.stdin is None:
        raise ConfigError([("standard input", "is closed; expected a snapshot")])
    try:
        return parse_document(sys.stdin.buffer, "standard input", "snapshot", bytes_max=bytes_max)
    except OSError as error:
        raise FileError.of("read a snapshot from standard input", error) from error


def _to_json(value: object) -> str:
    if isinstance(value, list) and value:
        return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
    return json.dumps(value)


def _schema(value: object) -> int:
    if value != SNAPSHOT_SCHEMA or isinstance(value, bool):
        raise ValueError(f"{shown(value)} is not a schema that is known here; expected {SNAPSHOT_SCHEMA}")
    return SNAPSHOT_SCHEMA


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a string, not {kind(value)}")
    return value


def _name(value: object) -> str:
    if len((name := _text(value)).splitlines()) > 1:
        raise ValueError(f"{shown(name)} is not the name of a host; expected a line")
    return name


def _list(key: str, parse: Callable[[Any], Any], show: Callable[[Any], Any], default: Any = NEEDED) -> Key:
    def parse_list(value: object) -> tuple[Any, ...]:
        # Some versions of ip print {} if an interface has nothing to show.
        items = each(value, lambda item: None if item == {} else parse(item))
        return tuple(item for item in items if item is not None)

    return Key(key, key, parse_list, lambda values: [*map(show, values)], default, True)


_SOURCES = Keys(_list("sources", parse_address, str))


def _read_sources(value: object) -> tuple[Route, tuple[IPv4Address, ...]]:
    return read_route(value), _SOURCES.read(value)["sources"]


def _write_sources(found: tuple[Route, tuple[IPv4Address, ...]]) -> dict[str, Any]:
    route, sources = found
    return write_route(route) | _SOURCES.write({"sources": sources})


_MANAGER = Keys(
    Key("name", "name", _text, str),
    _list("devs", _text, str),
    Key("dropsRoutes", "drops_routes", parse_boolean, bool, None),
)


_KEYS = Keys(
    Key("schema", "schema", _schema, int, SNAPSHOT_SCHEMA, True),
    Key("host", "host", _name, str, None),
    Key("time", "time", _text, str, None),
    Key("kernel", "kernel", _text, str, None),
    Key("ip", "ip", _text, str, None),
    Key("isTorn", "is_torn", parse_boolean, bool, False),
    Key("isMerged", "is_merged", parse_boolean, bool, None),
    _list("links", read_link, write_link),
    _list("addresses", read_addresses, str)._replace(show=write_addresses),
    _list("rules", read_rule, write_rule),
    _list("routes", read_route, write_route),
    _list("nexthops", read_nexthop, str, ()),
    _list("nameservers", parse_address, str, ()),
    _list("sources", _read_sources, _write_sources, ())._replace(is_always=False),
    _list("ignoringLinkdown", _text, str, None)._replace(field="ignoring_linkdown", is_always=False),
    _list("managers", lambda value: Manager(**_MANAGER.read(value)), Manager.to_json, ())._replace(is_always=False),
)
