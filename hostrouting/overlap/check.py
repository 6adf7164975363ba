"""Look up each expected CIDR in the kernel, judge the results, and merge both families' reports."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import attrs

from hostrouting.boot.host import Host
from hostrouting.config.routing import Config, RouteOverlap
from hostrouting.config.swapped_names import (
    Swap,
    ports_named,
    swap_words,
    swapped_devs,
    swapped_uplinks,
)
from hostrouting.kernel.default_routes import (
    default_beside_main,
    missing_default_route,
    missing_uplink,
    tables_for_all,
)
from hostrouting.kernel.port import RouteBackend
from hostrouting.kernel.rules import LOOPBACK
from hostrouting.model.errors import FileError, RouteError
from hostrouting.model.family import Family
from hostrouting.model.jsonable import rfc_3339
from hostrouting.model.links import is_infiniband, is_like
from hostrouting.model.parsing import is_device
from hostrouting.model.routes import Table
from hostrouting.model.text import shortened
from hostrouting.model.values import frozen
from hostrouting.overlap._group import findings_and_notes, without_listed
from hostrouting.overlap._host_notes import notes_on_host
from hostrouting.overlap._judge import Judge
from hostrouting.overlap._read import Moment, read_host
from hostrouting.overlap._state import State
from hostrouting.overlap.findings import (
    FamilyVerdict,
    Finding,
    FindingKind,
    OverlapReport,
    UnknownReason,
    Verdict,
)
from hostrouting.overlap.proposals import Answer, AnswerKind, Fix, HostSettings, Obstacle, Unfixable
from hostrouting.overlap.uplinks import (
    container_devs,
    contested_error,
    how_to_name,
    wait_for_addresses,
)
from phases import CancelScope

# A line of text names at most this many interfaces.
_SHOWN_DEVS = 3

_ADD_ONE = "add a default route, in the network manager's configuration or at the DHCP server"


def unjudged(
    overlap: RouteOverlap,
    reason_kind: UnknownReason,
    reason_detail: str,
) -> OverlapReport:
    """Return a report with the verdict ``unknown``.

    Args:
        overlap: the section of the config with the expected CIDRs.
        reason_kind: why the verdict is unknown.
        reason_detail: details about the reason.
    """
    report = _without_findings(overlap, Verdict.UNKNOWN)
    return attrs.evolve(report, reason_kind=reason_kind, reason_detail=reason_detail)


def nothing_expected(overlap: RouteOverlap) -> OverlapReport:
    """Return the report for a check without expected CIDRs.

    Such a check proves nothing and never prevents a node from starting.
    """
    how = "name the cluster's CIDRs with --cidr or as routeOverlap.expectedCidrs"
    return unjudged(overlap, UnknownReason.NOTHING_EXPECTED, how)


def unjudged_image(config: Config, host: Host) -> OverlapReport:
    """Return the report for an image, which has no kernel to query."""
    overlap = config.route_overlap
    report = nothing_expected(overlap)
    if overlap.expected_cidrs:
        why = "an image is checked at its first boot"
        report = unjudged(overlap, UnknownReason.NO_KERNEL, why)
    return attrs.evolve(report, host=host.name)


def _without_findings(overlap: RouteOverlap, verdict: Verdict) -> OverlapReport:
    time_ = rfc_3339(time.time())
    host = os.uname().nodename
    return OverlapReport(verdict, overlap.mode, time_, host, expected=overlap.expected_cidrs)


@frozen
class Checked:
    """The result of a check whose fix is only found on demand, because that may take longer.

    Args:
        report: the report, with an empty fix.
        with_fix: a function that returns the report with its fix, for the moment of the check.
    """

    report: OverlapReport
    with_fix: Callable[[], OverlapReport]

    @classmethod
    def of(cls, report: OverlapReport) -> Checked:
        """Return the result for a report that needs no fix, or has one."""
        return cls(report, lambda: report)


def check_families(
    config: Config,
    backends: Callable[[Family], RouteBackend],
    scope: CancelScope,
    *,
    host: Host | None = None,
    started: float | None = None,
) -> OverlapReport:
    """Check every expected CIDR against the kernel's routing decisions, without modifying the host.

    Args:
        config: the config with the expected CIDRs, the check's settings, and the uplinks.
        backends: a function that returns the backend for a family. The function is only called for
            IPv6 if IPv6 CIDRs are expected.
        scope: see ``check_overlap``.
        host: see ``check_overlap``.
        started: see ``check_overlap``.

    Returns:
        The report. If IPv6 CIDRs are expected, its verdict is the worse of both families' verdicts.
    """
    return checked_families(config, backends, scope, host=host, started=started).with_fix()


def checked_families(
    config: Config,
    backends: Callable[[Family], RouteBackend],
    scope: CancelScope,
    *,
    host: Host | None = None,
    started: float | None = None,
) -> Checked:
    """Check as ``check_families`` does, but find a fix only on demand."""

    def check(family: Family) -> Checked:
        try:
            backend = backends(family)
            ipv4 = backends(Family.IPV4)
        except RouteError as error:
            expected = config.route_overlap.of(family)
            return Checked.of(unjudged(expected, UnknownReason.CHECK_FAILED, error.clause))
        return _checked(
            config,
            backend,
            scope,
            ipv4=ipv4,
            host=host,
            started=started,
        )

    families = config.route_overlap.families
    if Family.IPV6 not in families:
        return check(Family.IPV4)
    each = {family: check(family) for family in families}
    return Checked(
        _joined(config, {family: checked.report for family, checked in each.items()}),
        lambda: _joined(config, {family: checked.with_fix() for family, checked in each.items()}),
    )


def check_host(
    config: Config,
    host: Host,
    scope: CancelScope,
    *,
    backends: Callable[[Family], RouteBackend] | None = None,
    started: float | None = None,
) -> OverlapReport:
    """Check a host with its verified uplinks, as ``check_families`` does.

    If the record of the verified uplinks can't be read, the verdict is ``unknown``.

    Args:
        config: the config with the expected CIDRs.
        host: the host to check.
        scope: see ``check_overlap``.
        backends: a function that returns the kernel to query for a family. None means the host's
            own kernel.
        started: see ``check_overlap``.
    """
    return checked_host(config, host, scope, backends=backends, started=started).with_fix()


def checked_host(
    config: Config,
    host: Host,
    scope: CancelScope,
    *,
    backends: Callable[[Family], RouteBackend] | None = None,
    started: float | None = None,
) -> Checked:
    """Check a host as ``check_host`` does, but find a fix only on demand."""
    if host.is_image:
        return Checked.of(unjudged_image(config, host))
    try:
        config = host.with_verified(config)
    except FileError as error:
        return Checked.of(unjudged(config.route_overlap, UnknownReason.CHECK_FAILED, str(error)))
    return checked_families(config, backends or host.routes_of, scope, host=host, started=started)


def _joined(config: Config, reports: dict[Family, OverlapReport]) -> OverlapReport:
    each = tuple(reports.values())
    since = [report.verified_since for report in each if report.verified_since is not None]
    worst = max(each, key=lambda report: [*Verdict].index(report.verdict))
    return attrs.evolve(
        worst,
        default_devs=tuple(sorted({dev for report in each for dev in report.default_devs})),
        verified_since=since[0] if since else None,
        findings=tuple(finding for report in each for finding in report.findings),
        notes=tuple(dict.fromkeys(note for report in each for note in report.notes)),
        expected=config.route_overlap.expected_cidrs,
        fix=_joined_fixes(_with_uplinks_of_both(config, reports)),
        families=tuple(_family_verdict(*item) for item in reports.items()),
    )


def _family_verdict(family: Family, report: OverlapReport) -> FamilyVerdict:
    return FamilyVerdict(
        family,
        report.verdict,
        report.default_devs,
        report.reason,
        report.default_expires,
    )


def _joined_fixes(fixes: Sequence[Fix]) -> Fix:
    return Fix(
        tuple(chain.from_iterable(fix.routes for fix in fixes)),
        tuple(chain.from_iterable(fix.rules for fix in fixes)),
        tuple(chain.from_iterable(fix.keep for fix in fixes)),
        tuple(chain.from_iterable(fix.unfixable for fix in fixes)),
        tuple(chain.from_iterable(fix.consequences for fix in fixes)),
        tuple(dict.fromkeys(chain.from_iterable(fix.hints for fix in fixes))),
    )


def _with_uplinks_of_both(config: Config, reports: dict[Family, OverlapReport]) -> list[Fix]:
    """Return each family's fix, with answers that name the uplinks of both families.

    An answer found for one family may name only its own uplinks. But the config's ``uplinks`` apply
    to both families, so such an answer would divert traffic of the other family.
    """
    wanted: set[str] = set()
    for family, report in reports.items():
        answers = [*_answers_with_uplinks(report.fix)]
        for answer in answers:
            wanted.update(answer.uplinks)
        expected = config.route_overlap.of(family).expected_cidrs
        if not answers and any(each.devs is None for each in expected):
            wanted.update(report.default_devs)

    def completed(answer: Answer) -> Answer:
        if not _keeps_uplinks(answer):
            return answer
        return answer._replace(uplinks=tuple(sorted(wanted)))

    fixes: list[Fix] = []
    for report in reports.values():
        unfixable = [_with_each_answer(each, completed) for each in report.fix.unfixable]
        fixes.append(attrs.evolve(report.fix, unfixable=tuple(unfixable)))
    return fixes


def _answers_with_uplinks(fix: Fix) -> Iterator[Answer]:
    """Yield the answers that name the interfaces asked about as uplinks."""
    for each in fix.unfixable:
        question = each.obstacle.question
        if question is not None and not question.is_ours:
            yield from filter(_keeps_uplinks, question.answers)


def _keeps_uplinks(answer: Answer) -> bool:
    return answer.kind is AnswerKind.WANTED and bool(answer.uplinks)


def _with_each_answer(unfixable: Unfixable, change: Callable[[Answer], Answer]) -> Unfixable:
    obstacle = unfixable.obstacle
    question = obstacle.question
    if question is None or question.is_ours:
        return unfixable
    question = question._replace(answers=tuple(map(change, question.answers)))
    return attrs.evolve(unfixable, obstacle=obstacle._replace(question=question))


def check_overlap(
    config: Config,
    backend: RouteBackend,
    scope: CancelScope,
    *,
    ipv4: RouteBackend | None = None,
    host: Host | None = None,
    started: float | None = None,
) -> OverlapReport:
    """Check every expected CIDR of the backend's family against the kernel's routing decisions.

    The host isn't modified.

    Args:
        config: the config with the expected CIDRs, the check's settings, and the uplinks.
        backend: the kernel to query.
        scope: cancellation scope for the check.
        ipv4: the host's IPv4 backend, for a check of IPv6. If the config names no uplinks, the
            interfaces of the IPv4 default route are also the uplinks for IPv6.
        host: the host, or None to read no files. The host's files tell which other traffic a fix
            moves and, except in a snapshot, why there is no IPv6 default route.
        started: when the run started, in seconds on the scope's clock. The check then waits for a
            default route on an uplink and for InfiniBand addresses, as long as the config says.
            With None, it doesn't wait.

    Returns:
        The report. The verdict is ``unknown``, with a reason, in any of these cases: no CIDR is
            expected; the kernel can't be queried; no uplink exists; there is no default route, or
            several that contradict each other; this host doesn't receive packets sent to it.
    """
    return _checked(config, backend, scope, ipv4=ipv4, host=host, started=started).with_fix()


def _checked(
    config: Config,
    backend: RouteBackend,
    scope: CancelScope,
    *,
    ipv4: RouteBackend | None,
    host: Host | None,
    started: float | None,
) -> Checked:
    overlap = config.route_overlap.of(backend.family)
    if not overlap.expected_cidrs:
        return Checked.of(nothing_expected(overlap))
    if overlap is not config.route_overlap:
        config = attrs.evolve(config, route_overlap=overlap)
    try:
        if started is not None:
            wait_for_addresses(config, backend, ipv4, scope, started)
        moment = read_host(config, backend, scope, ipv4)
    except RouteError as error:
        return Checked.of(unjudged(overlap, UnknownReason.CHECK_FAILED, error.clause))
    report = _judged(config, moment, host)
    if not report.findings:
        return Checked.of(report)
    scope.check()
    if config.verified and config.static_routes.is_wanted:
        from hostrouting.routes.plan import why_swapped

        why = why_swapped(config, backend, ipv4)
        if why is not None:
            fix = _nothing_until_edited(report.findings, why)
            return Checked.of(attrs.evolve(report, fix=fix))
    return Checked(report, lambda: _with_fix(report, moment, config, host))


def _judged(config: Config, moment: Moment, host: Host | None) -> OverlapReport:
    """Return the report on a moment of the host, without a fix."""
    overlap = config.route_overlap
    state = moment.state
    if state.uplinks.unknown is not None:
        return unjudged(overlap, state.uplinks.unknown, _why_unknown(config, state, host))
    if moment.not_received:
        return unjudged(overlap, UnknownReason.NO_LOCAL_TABLE, moment.not_received)
    Judge(overlap, state).judge(moment.places)
    findings, notes = findings_and_notes(overlap, state, moment.places)
    swapped = _swapped_devs(config, state, findings)
    if swapped:
        return unjudged(overlap, UnknownReason.SWAPPED, _why_swapped(swapped, config, state))
    verdict = Verdict.OVERLAP if findings else Verdict.OK
    about_host = notes_on_host(overlap, state, moment.places)
    return attrs.evolve(
        _without_findings(overlap, verdict),
        default_devs=state.uplinks.devs,
        verified_since=state.uplinks.since,
        findings=findings,
        notes=without_listed((*notes, *about_host), config.static_routes),
        default_expires=state.default_expires,
    )


def _nothing_until_edited(findings: Sequence[Finding], why: str) -> Fix:
    """Return a fix without entries, because the config's names now belong to other NICs."""
    ranges = tuple(chain.from_iterable(finding.ranges for finding in findings))
    devs = tuple(sorted({dev for finding in findings for dev in finding.devs}))
    return Fix(unfixable=(Unfixable(ranges, devs, Obstacle(why, is_withheld=True)),))


def _with_fix(
    report: OverlapReport,
    moment: Moment,
    config: Config,
    host: Host | None,
) -> OverlapReport:
    from hostrouting.overlap._fix import find_fix

    state = moment.state
    why_no_default = ""
    if state.uplinks.default is None:
        ports = ports_named(config, state.uplinks.devs, state.links)
        why_no_default = _why_swapped(ports, config, state) or _why_no_default(state, host)
    settings = _settings_of(host)
    findings, fix = find_fix(report.findings, moment, config, why_no_default, settings)
    if host is not None and host.snapshot is not None and not host.snapshot.is_ours:
        fix = attrs.evolve(fix, unfixable=tuple(map(_marked_if_hidden, fix.unfixable)))
    return attrs.evolve(report, findings=findings, fix=fix)


def _marked_if_hidden(unfixable: Unfixable) -> Unfixable:
    """Return a failure, marked if the snapshot may lack selectors of the failure's rule."""
    obstacle = unfixable.obstacle
    is_hidden = obstacle.rule is not None and obstacle.rule.has_unknown
    return attrs.evolve(unfixable, obstacle=obstacle._replace(is_hidden=is_hidden))


def load_all() -> None:
    """Import the modules that only a failing check needs.

    A watcher imports them when it starts, because an upgrade may replace the modules' files.
    """
    from hostrouting.host_files import advertisements, proc_sys, resolv_conf  # noqa: F401
    from hostrouting.kernel import model, netlink6, refused_routes  # noqa: F401
    from hostrouting.overlap import _fix  # noqa: F401


def _swapped_devs(config: Config, state: State, findings: Iterable[Finding]) -> tuple[Swap, ...]:
    """Return the verified uplinks whose new names make a name in ``devs`` mean another NIC."""
    if not config.verified:
        return ()
    named = {(each.cidr, each.devs) for each in config.route_overlap.expected_cidrs if each.devs}
    led = [
        (finding.expected_devs, finding.devs)
        for finding in findings
        if finding.kind is FindingKind.OVERLAP and (finding.cidr, finding.expected_devs) in named
    ]
    return swapped_devs(config, state.links, led)


def _why_swapped(swapped: Iterable[Swap], config: Config, state: State) -> str:
    words = (swap_words(swap, config, state.links) for swap in swapped)
    return "; ".join(": ".join(each) for each in words)


def _why_unknown(config: Config, state: State, host: Host | None) -> str:
    """Return why the uplinks are unknown, with facts that help to name them."""
    uplinks = state.uplinks
    family = state.family
    if config.uplinks is not None:
        swapped = swapped_uplinks(config, state.links)
        if swapped:
            return _why_swapped(swapped, config, state)
        named = ",".join(config.uplinks)
        if is_like(LOOPBACK, config.uplinks):
            return f"hostRouting.uplinks ({named}) matches only lo, which can't be an uplink"
        cidrs = config.route_overlap.expected_cidrs
        naming = how_to_name(state.defaults, state.routes, cidrs, state.links)
        missing = missing_uplink(config.uplinks)
        return f"there is no {missing}: add that interface, or {naming}, then: hostrouting apply"
    if uplinks.contested:
        cidrs = config.route_overlap.expected_cidrs
        return contested_error(uplinks, state.routes, cidrs, state.links).clause
    elsewhere = [route for route in state.defaults if route.devs]
    ignored = _ignored_advertisements(state, host)
    if uplinks.named is not None and elsewhere:
        missing = missing_default_route(state.defaults, family, uplinks.named)
        has_one = f"{','.join(elsewhere[0].devs)} has one ({elsewhere[0]})"
        return f"missing is {missing}{ignored}; {has_one}"
    other = _default_of_other_table(state)
    if not state.defaults:
        other = other or f"; {_adding_one(config.route_overlap, state)}"
        return f"table main has no unicast {family.any} to compare with{ignored}{other}"
    return f"missing is {missing_default_route(state.defaults, family)}{ignored}{other}"


def _default_of_other_table(state: State) -> str:
    """Return a clause with a default route of another table than main, or an empty string."""
    asked = default_beside_main(state.routes, tables_for_all(state.rules))
    if asked is not None:
        fabric = {link.name for link in state.links if is_infiniband(link)}
        devs = [dev for dev in asked.devs if dev not in fabric]
        return f"; another table has one: {asked}; to compare with that, {_naming(devs)}"
    for route in state.routes:
        if route.destination.prefixlen == 0 and route.hops and route.table != Table.MAIN:
            unused = "no policy rule looks it up for every packet: add it to table main"
            return f"; another table has one: {route}; {unused}"
    return ""


def _adding_one(overlap: RouteOverlap, state: State) -> str:
    """Return how to get a default route on a host that has none, or how to do without."""
    add = _ADD_ONE
    if state.uplinks.gone:
        gone = ",".join(state.uplinks.gone)
        add = f"bring {gone}, with which the check passed, and its default route back"
    return f"{add}, or, if this host needs none, {_naming(_attached(overlap, state))}"


def _naming(devs: Sequence[str]) -> str:
    """Return how to name interfaces as uplinks, without those that a config can't name."""
    names = ", ".join(f'"{dev}"' for dev in devs if is_device(dev)) or '"NAME"'
    return f'set "uplinks": [{names}], then: hostrouting apply'


def _attached(overlap: RouteOverlap, state: State) -> list[str]:
    """Return the possible uplinks: the interfaces whose network overlaps an expected CIDR.

    Interfaces of pods and InfiniBand, bridges and ports are left out.
    """
    ignored = container_devs(overlap, state.links) | {
        link.name for link in state.links if link.kind == "bridge" or is_infiniband(link)
    }
    ignored.update(state.ports)
    attached: set[str] = set()
    for expected in overlap.expected_cidrs:
        near = (each for each in state.addresses if each.network.overlaps(expected.cidr))
        attached.update(each.dev for each in near if expected.devs is None)
    return sorted(attached - ignored - {LOOPBACK})


def _ignored_advertisements(state: State, host: Host | None) -> str:
    """Return a clause with the uplinks on which the kernel ignores router advertisements.

    The clause is empty if there are no such uplinks.
    """
    if state.family is Family.IPV4 or host is None or host.snapshot is not None:
        return ""
    from hostrouting.host_files.advertisements import why_ignored

    found = why_ignored(host.layout, state.links, state.uplinks.named)
    return f"; {shortened(found, '; ', _SHOWN_DEVS)}" if found else ""


def _why_no_default(state: State, host: Host | None) -> str:
    """Return why there is no default route for entries to inherit from."""
    missing = (
        f"missing is {missing_default_route(state.defaults, state.family, state.uplinks.named)}"
    )
    missing += _ignored_advertisements(state, host)
    down = sorted(
        link.name for link in state.links if link.name in state.uplinks.devs and not link.is_up
    )
    if down:
        missing = f"{missing}, and {','.join(down)} {'is' if len(down) == 1 else 'are'} down"
    return f"{missing}: add a default route, or an entry that names gateway and dev"


def _settings_of(host: Host | None) -> HostSettings:
    """Return the settings of a host that a fix's cautions depend on."""
    if host is None:
        return HostSettings()
    if host.snapshot is not None:
        return HostSettings(host.snapshot.nameservers, host.snapshot.strict_devs or ())
    from hostrouting.host_files.proc_sys import strict_devs
    from hostrouting.host_files.resolv_conf import nameservers

    try:
        return HostSettings(
            nameservers(host.layout),
            strict_devs(host.layout, host.routes.facts().links) or (),
        )
    except FileError as error:
        return HostSettings(unread=error.clause)
