"""What a command's options name: a config, CIDRs, a host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from hostrouting.cli import output, page
from hostrouting.config.overlap import ExpectedCidr
from hostrouting.config.routing import SECTION, Config, read_config
from hostrouting.model.errors import ConfigError
from hostrouting.model.parsing import parse_cidr
from hostrouting.model.text import clean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from ipaddress import IPv4Address, IPv4Network

    from hostrouting.boot.host import Host
    from hostrouting.config.routing import StaticRoute
    from hostrouting.kernel.snapshot import Snapshot

__all__ = ["Asked", "UsageError", "load", "merged", "read", "read_section", "read_with_cidrs"]

T = TypeVar("T")


class UsageError(Exception):
    """The arguments can't be meant like that; the message says what is wrong."""


@attrs.frozen
class Asked:
    """Whom a command asks: the recorded host of --snapshot, the given one, or this one.

    Args:
        host: of a recorded one nothing is known but its routes.
        recorded: what was recorded; None: the host can be asked anew.
    """

    host: Host
    recorded: Snapshot | None = None

    @classmethod
    def of(cls, options: argparse.Namespace, host: Host | None) -> Asked:
        """The one that the options name."""
        from hostrouting.boot.host import Host

        if options.snapshot is None:
            return cls(host or Host())
        from hostrouting.boot.fake_systemd import FakeSystemd
        from hostrouting.boot.layout import Layout
        from hostrouting.kernel.recording import SnapshotBackend

        recorded = _load_snapshot(options.snapshot)
        # Of units and files nothing is recorded, and nothing is asked.
        layout = Layout() if host is None else host.layout
        return cls(Host(routes=SnapshotBackend(recorded), units=FakeSystemd(), layout=layout), recorded)

    @property
    def nameservers(self) -> Sequence[IPv4Address]:
        """The nameservers that the host asks, or asked when it was recorded."""
        from hostrouting.boot.resolvers import nameservers

        return nameservers(self.host.layout) if self.recorded is None else self.recorded.nameservers


def _load_snapshot(path: str) -> Snapshot:
    from hostrouting.kernel.recording import STDIN, load_snapshot

    if path == "":
        raise UsageError("hostrouting: --snapshot is empty; is a shell variable unset?")
    try:
        return load_snapshot(path)
    except ConfigError as error:
        name = "standard input" if path == STDIN else path
        if not any(where == name for where, _ in error.problems):
            output.complain(f"{page.bad('hostrouting:')} {clean(name)} is no snapshot:")
        raise


def read(options: argparse.Namespace, host: Host | None) -> tuple[dict[str, Any], Config]:
    """The document of CONFIG as it was written, and what it means."""
    return read_section(options, host, SECTION, Config.from_mapping)


def read_section(
    options: argparse.Namespace, host: Host | None, section: str | None, parse: Callable[[dict[str, Any]], T]
) -> tuple[dict[str, Any], T]:
    """The document of CONFIG, and what a part of it means; None as the section: it needn't be there."""
    from hostrouting.boot.layout import Layout

    layout = Layout() if host is None else host.layout
    path = layout.config if options.config is None else options.config
    if path == "":
        raise UsageError("hostrouting: CONFIG is empty; is a shell variable unset?")
    try:
        document = read_config(path)
        config = parse(document)
        if section is not None and section not in document:
            output.complain(f"hostrouting: {clean(str(path))} has no key {section}: it asks for nothing")
        return document, config
    except ConfigError as error:
        if not any(where == str(path) for where, _ in error.problems):
            output.complain(f"{page.bad('hostrouting:')} {clean(str(path))} breaks the rules:")
        elif options.config is None and "cidr" in options:
            output.complain("hostrouting: name a CONFIG, or the CIDRs to expect: --cidr 172.16.0.0/16")
        raise


def load(options: argparse.Namespace, host: Host | None) -> Config:
    """The config that CONFIG holds."""
    return read(options, host)[1]


def read_with_cidrs(options: argparse.Namespace, host: Host | None) -> tuple[dict[str, Any] | None, Config]:
    """The same with the CIDRs of --cidr; where only these are given, no file is read, and there is no document."""
    given = _cidrs(options.cidr)
    document, config = (None, Config()) if given and options.config is None else read(options, host)
    expected = (*config.route_overlap.expected_cidrs, *map(ExpectedCidr, given))
    return document, attrs.evolve(config, route_overlap=attrs.evolve(config.route_overlap, expected_cidrs=expected))


def merged(document: dict[str, Any] | None, entries: Sequence[StaticRoute]) -> dict[str, Any]:
    """A config's document with some more static routes; without one, a document of these alone."""
    if document is None:
        document = {}
    elif not entries:
        return document
    section = document.get(SECTION) or {}
    routes = section.get("staticRoutes") or {}
    more = {"enabled": True, "routes": [*(routes.get("routes") or ()), *(entry.to_mapping() for entry in entries)]}
    return document | {SECTION: section | {"staticRoutes": routes | more}}


def _cidrs(texts: Sequence[str]) -> tuple[IPv4Network, ...]:
    cidrs: list[IPv4Network] = []
    problems: list[str] = []
    for text in texts:
        try:
            cidrs.append(parse_cidr(text))
        except ValueError as error:
            problems.append(f"hostrouting: --cidr {error}")
    if problems:
        raise UsageError("\n".join(problems))
    return tuple(cidrs)
