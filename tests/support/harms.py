"""Apply each thing that a check prints alone, and find what it takes away without saying so."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import attrs
from crowding import Built
from losing import Loss, losses, sorted_out
from node import attempt
from worlds.crowded import Crowded

from hostrouting import Config, HostRoutingError, OverlapReport, check, plan
from hostrouting.backend import read_routes
from hostrouting.cli.edit_config import merged
from hostrouting.config.routing import Keep, StaticRoutes
from hostrouting.model.family import IpAddress, IpNetwork
from hostrouting.model.links import is_like
from hostrouting.model.parsing import is_inside
from hostrouting.model.routes import Table
from hostrouting.overlap.offers import keep_offers
from hostrouting.overlap.proposals import Fix
from hostrouting.overlap.summary import brief
from hostrouting.tasks.install_routes import InstallRoutes
from phases import CancelScope

_COMMAND = re.compile(r"\bip(?: -[46])? (?:route|rule) (?:add|del|append|prepend|replace) [^;,\n]*")
_KEEP = re.compile(r"staticRoutes\.keep: (.*?)(?: with its [^,;]*)?(?=, but |; |$)")
_KIND = "(?:(?:blackhole|unreachable|prohibit|throw|local) )?"
_ROUTE = rf"\b(?P<route>{_KIND}(?:default|[\da-f]+[.:][\da-f.:/]*)(?: (?:(?!: )[^;,])+?)?)"
_REMOVED = (
    rf"{_ROUTE} (?:is for this address alone|decides before table main)[^;]*: remove it",
    rf"it is the gateway of {_ROUTE}: no longer expect it, move that gateway, or remove the route",
    rf"because it is in {_ROUTE}: remove that",
    r"(?P<address>\S+) is the gateway of [^;]+: remove that address from (?P<dev>[^\s,;]+)",
    r"(?P<address>\S+), the gateway of [^;]+ address of (?P<dev>\S+): remove it from there",
)
_SHOWN, _SEEN = 4, 4
_EVERYTHING = (ip_network("0.0.0.0/0"), ip_network("::/0"))

Section = Mapping[str, Any]


@attrs.frozen
class Printed:
    """Something that is printed, to be applied alone.

    Args:
        name: its kind.
        apply: a function that applies it, and returns the report on the host after it, with the
            report by which it was done if that is another than the first.
        text: what is printed with it.
        ranges: the destinations that it is for.
        settles: whether these must no longer fail.
        told: the destinations that may go on failing.
        devs: the interfaces that an answer is about.
        is_removal: whether it removes a route or an address.
        keep: the entries of ``keep`` in it.
        is_asked_for: whether the config lists the routes. Then packets without a source to
            InfiniBand's neighbours in the ranges are to go elsewhere, and no text says so.
    """

    name: str
    apply: Callable[[Built], tuple[OverlapReport, OverlapReport | None]]
    text: tuple[str, ...]
    ranges: tuple[IpNetwork, ...]
    told: tuple[IpNetwork, ...] = ()
    devs: tuple[str, ...] = ()
    is_removal: bool = False
    keep: tuple[Keep, ...] = ()
    is_asked_for: bool = False


def harms(crowded: Crowded, root: Path) -> list[str]:
    """Return what is lost without a word, and what doesn't do what it is printed for."""
    built = _built(crowded, root)
    if built is None:
        return []
    report = check(crowded.config, host=built.host)
    is_fine = report.verdict == "ok"
    offers = keep_offers(crowded.config, built.kernel, CancelScope()) if is_fine else []
    printed = [
        *_printed(crowded, report, [*map(str, offers)]),
        *_listed(crowded, built, report),
        *_fix_as_listed(crowded, built, report),
    ]
    if not printed:
        return []
    before = Before(crowded, built, report)
    found: list[str] = []
    for each in printed:
        again = _built(crowded, root)
        assert again is not None
        try:
            after, then = each.apply(again)
        except HostRoutingError as error:
            found.append(f"{each.name}: refused: {error}")
            continue
        harmful = [*before.unnamed(each, again, after, then), *before.undone(each, after, then)]
        found += (f"{each.name}: {harm}" for harm in harmful)
    return found


class Before:
    """A host as it was, with the ways of its packets.

    Args:
        crowded: the host.
        built: the host, built.
        report: what the check says of it.
    """

    def __init__(self, crowded: Crowded, built: Built, report: OverlapReport) -> None:
        self._report = report
        self._seed = crowded.seed
        self._is_forwarding = crowded.forwards
        entries = report.fix.entries
        cuts = [
            *(route.destination for route in entries.routes),
            *(rule.to for rule in entries.rules),
            *_failing(report),
        ]
        self._asked = built.packets(cuts)
        self._ways = built.ways(self._asked)
        self._reached: dict[tuple[str | None, str], list[IpNetwork]] = {}
        for route in read_routes(built.backend):
            for hop in route.hops:
                way = hop.dev, str(hop.gateway or "")
                self._reached.setdefault(way, []).append(route.destination)
        self._owners: dict[IpAddress, str] = {}
        self._networks: dict[str, list[IpNetwork]] = {}
        for address in built.backend.facts().addresses:
            self._owners[address.local] = address.dev
            self._networks.setdefault(address.dev, []).append(address.network)

    def unnamed(
        self, printed: Printed, again: Built, after: OverlapReport, then: OverlapReport | None
    ) -> Iterator[str]:
        """Yield the kinds of losses that the text doesn't name.

        Args:
            printed: what was applied.
            again: the host after it.
            after: the report on that host.
            then: the report by which it was done, if that is another than the first.
        """
        ways = again.ways(self._asked)
        reports = [self._report, *([then] if then else [])]
        ranges = [*printed.ranges, *(_failing(then) if then else ())]
        sources = {each.source for report in reports for each in report.findings}
        networks = self._networks
        if printed.is_asked_for:
            networks = {dev: own for dev, own in networks.items() if not is_like(dev, ("ib*",))}
        lost = losses(self._ways, ways, ranges, self._owners, after.default_devs, sources, networks)
        if printed.is_removal:  # the text names what is removed, whatever used it
            lost = (attrs.evolve(loss, is_only_by_source=False) for loss in lost)
        lines = [*printed.text, *told_by(then.fix if then else None)]
        keep = (*printed.keep, *(then.fix.keep if then else ()))
        unnamed = [
            loss
            for loss in lost
            if not any(loss.is_named(line) for line in lines)
            and not self._is_kept(loss, keep, after.default_devs)
        ]
        yield from (f"loses {line}" for line in sorted_out(unnamed))
        some = random.Random(self._seed).sample(self._asked, min(_SEEN, len(self._asked)))
        yield from again.differences(some, ways)

    def _is_kept(self, loss: Loss, keep: Sequence[Keep], uplinks: Sequence[str]) -> bool:
        """Return whether a packet from an interface's own address now stays on it, as it is to."""
        stays = loss.owner and loss.after.dev == loss.owner
        if not stays or not any(is_like(loss.owner, (each.dev,)) for each in keep):
            return False
        around = [each for each in self._networks[loss.owner] if loss.packet.to in each]
        if loss.before.dev in uplinks:
            is_meant = not around
        else:
            # No wider route is meant for neighbours, such as a default route, or a VPN's for half
            # of the address space.
            reached = self._reached.get((loss.before.dev, loss.before.gateway), ())
            is_meant = not any(is_inside(part, each) for part in reached for each in around)
        if is_meant:
            return True
        if loss.before.dev in uplinks:
            return False
        networks = self._networks.get(loss.before.dev, ())
        return any(
            loss.packet.to in network and network in networks
            for network in self._networks[loss.owner]
        )

    def undone(
        self, printed: Printed, after: OverlapReport, then: OverlapReport | None
    ) -> Iterator[str]:
        """Yield what it was printed for and doesn't do; see ``unnamed``."""
        told = [*printed.told, *(_unfixable(then) if then else ())]
        left = [str(part) for part in _failing(after) if not any(map(part.overlaps, told))]
        if left:
            yield f"still fails: {' '.join(left[:_SHOWN])}"
        advice = "; ".join(printed.text)
        if printed.is_removal and any(each.reason == advice for each in after.fix.unfixable):
            yield f"settles nothing: {printed.text[0]}"
        if then is not None and _covers(_left(self._report, after, printed.devs), printed.ranges):
            yield f"settles nothing: {after.findings[0].message}"
        if after.reason_kind is not None and not printed.is_asked_for:  # plan predicts it
            yield f"then unknown: {after.reason}"


def _built(crowded: Crowded, root: Path) -> Built | None:
    """Build a host with what its config installs, or return None if that is refused."""
    built = Built(crowded, root)
    if crowded.config.static_routes.is_wanted:
        try:
            _install(crowded.config, built)
        except HostRoutingError:
            return None
    return built


def _install(config: Config, built: Built) -> None:
    InstallRoutes(config, host=built.host).do(CancelScope())


# --- what is printed ------------------------------------------------------------------------------


def _printed(crowded: Crowded, report: OverlapReport, offers: Sequence[str]) -> Iterator[Printed]:
    section = crowded.section
    fix = report.fix
    failing, told = _failing(report), _unfixable(report)
    wanted = fix.entries
    if wanted.is_wanted:
        apply = partial(_with_entries, section, wanted)
        yield Printed("proposal", apply, told_by(fix), failing, told, keep=fix.keep)
    for line in (*fix.consequences, *offers):
        for text in _KEEP.findall(line):
            if "GATEWAY" not in text:
                entries = StaticRoutes(enabled=True, keep=json.loads(f"[{text}]"))
                both = attrs.evolve(wanted, enabled=True, keep=(*wanted.keep, *entries.keep))
                apply = partial(_with_entries, section, both)
                lines = (*told_by(fix), "; ".join(brief(line)))
                yield Printed(f"keep {text}", apply, lines, failing, told, keep=both.keep)
    for command in _COMMAND.findall(report.reason or ""):
        run = partial(_with_command, crowded.config, command)
        yield Printed(f"command {command}", run, (report.reason or "",), (), _EVERYTHING)
    for each in fix.unfixable:
        others = tuple(part for part in failing if not any(map(part.overlaps, each.ranges)))
        for command in _COMMAND.findall(each.reason):
            run = partial(_with_command, crowded.config, command)
            yield Printed(f"command {command}", run, (each.reason,), each.ranges, others)
        for command in _removals(crowded, each.reason):
            run = partial(_with_command, crowded.config, command)
            name = f"removal {command}"
            text = tuple(each.reason.split("; "))  # clauses, of which each has its own exceptions
            yield Printed(name, run, text, each.ranges, _EVERYTHING, is_removal=True)
        for answer in each.answers:
            reply = partial(_with_answer, section, answer)
            name = f"answer {json.dumps(answer)}"
            text = _effect(each.reason, answer)
            yield Printed(name, reply, text, each.ranges, others, each.devs)


def _effect(reason: str, answer: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the clauses of a reason on the effect of an answer that names uplinks."""
    if "uplinks" not in answer:
        return ()
    effect = reason.partition(json.dumps(answer["uplinks"]))[2].partition("; if ")[0]
    return tuple(re.split("; |, and hostrouting fix ", effect))


def _listed(crowded: Crowded, built: Built, report: OverlapReport) -> Iterator[Printed]:
    """Yield a config with a route that no CIDR asks for, and what a plan tells about it."""
    found = [
        route.destination
        for route in read_routes(built.backend, Table.MAIN)
        if 0 < route.destination.prefixlen < crowded.family.bits - 1 and route.devs
    ]
    if not found:
        return
    drawing = random.Random(crowded.seed)
    parts = [*drawing.choice(found).subnets(drawing.choice((0, 1)))]
    entries = StaticRoutes(enabled=True, routes=[{"destination": str(drawing.choice(parts))}])
    yield from _as_listed(crowded, built, report, entries)


def _fix_as_listed(crowded: Crowded, built: Built, report: OverlapReport) -> Iterator[Printed]:
    """Yield a config that lists the whole fix and each offered ``keep``; see ``_as_listed``."""
    offered = [
        Keep(**each) if isinstance(each, dict) else Keep(each)
        for line in report.fix.consequences
        for text in _KEEP.findall(line)
        if "GATEWAY" not in text
        for each in json.loads(f"[{text}]")
    ]
    fix = report.fix.entries
    if offered:
        entries = attrs.evolve(fix, keep=[*dict.fromkeys((*fix.keep, *offered))])
        yield from _as_listed(crowded, built, report, entries)


def _as_listed(
    crowded: Crowded, built: Built, report: OverlapReport, entries: StaticRoutes
) -> Iterator[Printed]:
    """Yield a config with more entries, and what a plan tells about it."""
    document = merged({"hostRouting": dict(crowded.section)}, entries, ())
    try:
        config = Config.from_mapping(document)
        planned = plan(config, host=built.host)
    except HostRoutingError:  # it is listed already, or its gateway isn't known
        return
    if planned.missing is None and not any("would fail" in line for line in planned.warnings):
        failing = _failing(report)
        if report.reason_kind is not None:  # nothing was judged
            failing = tuple(each.cidr for each in config.route_overlap.expected_cidrs)
        apply = partial(_with_entries, crowded.section, entries)
        name = f"listed {', '.join(str(each.destination) for each in entries.routes)}"
        keep = entries.keep
        warnings = planned.warnings
        yield Printed(name, apply, warnings, failing, _EVERYTHING, keep=keep, is_asked_for=True)


def told_by(fix: Fix | None) -> tuple[str, ...]:
    """Return a fix's cautions as they are told without -v."""
    return () if fix is None else tuple("; ".join(brief(line)) for line in fix.consequences)


def _removals(crowded: Crowded, reason: str) -> Iterator[str]:
    """Yield the commands for the routes and addresses that a reason advises to remove."""
    ip = f"ip -{crowded.family.value}"
    for pattern in _REMOVED:
        for found in re.finditer(pattern, reason):
            words = found.groupdict()
            if "route" in words:
                yield f"{ip} route del {words['route']}"
            else:
                length = crowded.family.bits
                yield f"{ip} addr del {words['address']}/{length} dev {words['dev']}"


def _failing(report: OverlapReport) -> tuple[IpNetwork, ...]:
    return tuple(part for finding in report.findings for part in finding.ranges)


def _left(
    before: OverlapReport, after: OverlapReport, devs: Sequence[str]
) -> tuple[IpNetwork, ...]:
    """Return what fails after an answer, without what failed before through other interfaces."""
    others = {(each.kind, each.devs, each.source) for each in before.findings if each.devs != devs}
    return tuple(
        part
        for each in after.findings
        if (each.kind, each.devs, each.source) not in others
        for part in each.ranges
    )


def _covers(parts: Sequence[IpNetwork], wanted: Sequence[IpNetwork]) -> bool:
    numbers = {int(end) for part in wanted for end in (part[0], part[-1])}
    return all(any(int(part[0]) <= each <= int(part[-1]) for part in parts) for each in numbers)


def _unfixable(report: OverlapReport) -> tuple[IpNetwork, ...]:
    return tuple(part for each in report.fix.unfixable for part in each.ranges)


def _config(section: Section) -> Config:
    return Config.from_mapping({"hostRouting": section})


def _with_entries(
    section: Section, entries: StaticRoutes, built: Built
) -> tuple[OverlapReport, OverlapReport | None]:
    config = Config.from_mapping(merged({"hostRouting": dict(section)}, entries, ()))
    _install(config, built)
    return check(config, host=built.host), None


def _with_command(
    config: Config, command: str, built: Built
) -> tuple[OverlapReport, OverlapReport | None]:
    done = attempt(*command.split())
    if done.returncode:
        raise HostRoutingError(done.stderr.strip())
    return check(config, host=built.host), None


def _with_answer(
    section: Section, answer: Section, built: Built
) -> tuple[OverlapReport, OverlapReport | None]:
    """Answer a question, and install what is proposed then."""
    overlap = section["routeOverlap"]
    rows = answer.get("expectedCidrs", ())
    named = [ip_network(row["cidr"]) for row in rows]
    others = [
        each
        for each in overlap["expectedCidrs"]
        if ip_network(each if isinstance(each, str) else each["cidr"]) not in named
    ]
    answered = {
        **section,
        **answer,
        "routeOverlap": {**overlap, "expectedCidrs": [*others, *rows]},
    }
    answered.pop("expectedCidrs", None)
    report = check(_config(answered), host=built.host)
    entries = report.fix.entries
    config = Config.from_mapping(merged({"hostRouting": answered}, entries, ()))
    if config.static_routes.is_wanted:
        _install(config, built)
    return check(config, host=built.host), report
