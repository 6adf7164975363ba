"""Find what a change of a host takes away, and whether the text printed with it says so."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_network
from types import MappingProxyType

import attrs
from reaching import Packet, Way, Ways

from hostrouting.model.family import IpAddress, IpNetwork

_PREFIX = re.compile(r"(?<![\w.:])([0-9a-f.:]*[.:][0-9a-f.:]*(?:/\d+)?)(?![\w:])")
# ib0-ib7 is all of them.
_RUN = re.compile(r"(?P<stem>\w+?)(?P<first>\d+)-(?P=stem)(?P<last>\d+)")
_EXCEPT = re.compile(r", except from (?:this interface's|these interfaces') own addresses[^;]*")
# The interfaces of such an exception: those that the packets left through before.
_EXCEPTED = re.compile(r"neighbours of (.+?) in |through (.+?), but ")


@attrs.frozen
class Loss:
    """A packet that goes another way, or none, although it went well.

    Args:
        packet: the packet.
        before: its way before.
        after: its way now.
        owner: the interface that has its source, or an empty string.
        is_only_by_source: whether other packets to the destination were to be led elsewhere, so
            that the source must be named.
    """

    packet: Packet
    before: Way
    after: Way
    owner: str
    is_only_by_source: bool

    def __str__(self) -> str:
        return f"{self.packet}: {self.before} -> {self.after}"

    def is_named(self, line: str) -> bool:
        """Return whether a line names the destination's prefix, or the interface that is lost.

        A line that excepts own addresses names no packet from one that the owner now carries. A
        line about all packets names those from each address.
        """
        words = {*_words(line)}
        prefixes = [*_prefixes(line)]
        if _EXCEPT.search(line):
            found = _EXCEPTED.search(line)
            excepted = {*_words(found[0] if found else line)}
            is_now_kept = self.owner in excepted and self.after.dev == self.owner
            if self.is_only_by_source or is_now_kept:
                return False
        is_about_all = line.startswith("packets no longer go to ") or "apply moves " in line
        if self.is_only_by_source and not is_about_all:
            is_own = self.owner in words or any(
                part.prefixlen == part.max_prefixlen and self.packet.source in part
                for part in prefixes
            )
            if not (is_own and "from" in words):
                return False
        devs = {self.before.dev, *re.findall(r"^[\w.-]+", self.before.then)}
        return bool(devs & words) or any(self.packet.to in part for part in prefixes)


def _words(line: str) -> Iterator[str]:
    for word in re.findall(r"[\w.-]+", line):
        yield word
        if run := _RUN.fullmatch(word):
            numbers = range(int(run["first"]), int(run["last"]) + 1)
            yield from (f"{run['stem']}{number}" for number in numbers)


def _prefixes(line: str) -> Iterator[IpNetwork]:
    for text in _PREFIX.findall(line):
        try:
            yield ip_network(text.strip(".:") if text.count("::") == 0 else text, strict=False)
        except ValueError:
            continue


def losses(
    before: Ways,
    after: Ways,
    ranges: Sequence[IpNetwork],
    owners: Mapping[IpAddress, str],
    uplinks: Sequence[str],
    sources: Container[IpAddress | None] = (),
    networks: Mapping[str, Sequence[IpNetwork]] = MappingProxyType({}),
) -> Iterator[Loss]:
    """Yield the packets that went well and now go another way, except those that were to.

    Args:
        before: how packets went.
        after: how they go after the change.
        ranges: the destinations that the change is for.
        owners: the interfaces of the host's addresses.
        uplinks: the expected interfaces.
        sources: the sources of the findings that the change is for.
        networks: the connected networks of interfaces, in which neighbours count as well.
    """
    for packet, way in before.items():
        now = after[packet]
        is_mended = way.then.startswith("E") and now == attrs.evolve(way, then="")
        if now == way or is_mended or not way.dev or (now.dev == "lo" and packet.to in owners):
            continue
        owner = owners.get(packet.source, "") if packet.source is not None else ""
        is_meant = way.dev != "lo" and any(packet.to in part for part in ranges)
        # The check judges packets from the addresses of uplinks and lo.
        is_judged = owner in (*uplinks, "lo") or packet.source in sources
        plain = after.get(attrs.evolve(packet, source=None), now)
        is_kept = owner == now.dev != plain.dev
        is_by_source = (owner == way.dev or is_kept) and not is_judged
        is_near = packet.source is None and any(
            packet.to in network for network in networks.get(way.dev, ())
        )
        if is_by_source or is_near or not is_meant:
            yield Loss(packet, way, now, owner, is_only_by_source=is_meant and is_by_source)


def sorted_out(lost: Iterable[Loss]) -> Iterator[str]:
    """Yield a line for each kind of loss."""
    by_kind: dict[tuple[object, ...], list[Loss]] = {}
    for loss in lost:
        kind = (loss.before.dev, loss.after.dev, loss.owner, bool(loss.packet.arrives_on))
        by_kind.setdefault(kind, []).append(loss)
    for group in by_kind.values():
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        yield f"{group[0]}{more}"
