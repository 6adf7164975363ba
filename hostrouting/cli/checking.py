"""Commands that check a host. Each docstring is also the command's help text."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.boot.host import Host
from hostrouting.cli.changes import NOTHING, changes_lines
from hostrouting.cli.exit_codes import (
    EXIT_CHECK_UNKNOWN,
    EXIT_OF_VERDICT,
    exit_of_result,
)
from hostrouting.cli.inputs import (
    WRITE_FIRST,
    Chosen,
    UsageError,
    asked_host,
    choose,
    choose_default,
    config_and_snapshots,
    config_path,
    has_config,
    load,
    load_snapshot,
    readable_elsewhere,
)
from hostrouting.cli.output import columns, complain
from hostrouting.cli.report import (
    SIMILAR,
    fix_lines,
    nagios,
    overlap_picture,
    overlap_text,
    page_text,
    unexpected_lines,
)
from hostrouting.cli.running import Result, run_function
from hostrouting.config.routing import SECTION, Config, OverlapMode, StaticRoutes
from hostrouting.kernel.port import RouteBackend
from hostrouting.model.changes import Changes
from hostrouting.model.errors import ConfigError, FileError, HostRoutingError, RouteError
from hostrouting.model.family import Family
from hostrouting.model.jsonable import to_json_text
from hostrouting.model.text import clean, counted
from hostrouting.overlap.check import Checked
from hostrouting.overlap.findings import (
    Note,
    NoteKind,
    OverlapReport,
    RouteOverlapError,
    UnknownReason,
    Verdict,
)
from hostrouting.overlap.printed_on_host import printed_on
from hostrouting.overlap.proposals import Fix
from hostrouting.overlap.summary import advice, summary
from hostrouting.overlap.taken_networks import taken_networks
from hostrouting.routes import formats
from hostrouting.tasks import queries

if TYPE_CHECKING:
    from hostrouting.overlap.lasting import LastingFile
    from hostrouting.overlap.planned_host import PlannedHost
    from hostrouting.overlap.rehearsal import Rehearsal
    from hostrouting.routes.plan import RoutePlan


def check(options: argparse.Namespace, host: Host) -> Result | int:
    """Check that traffic to every expected CIDR leaves through the node's uplink.

    The check covers every address: it queries the kernel for each range of addresses with the same
    lookup result. On a host with "from" in a policy rule, it repeats the lookup with the source
    address that the kernel would choose. It waits up to waitSeconds (30 without a CONFIG) for a
    default route, and up to settleSeconds for InfiniBand addresses. It changes nothing, and writes
    no marker. If apply would install routes or rules of CONFIG that fix a failure, it says so.

    It exits with 0 on success, with 2 if there is no verdict, and with 1 if a CIDR is shadowed, has
    no route or is discarded. With --output nagios it exits with 0 (OK), 1 (failures in WARN mode,
    the note MOVED, a start would be held, or the gate is off), 2 (failures in STRICT mode) or 3
    (unknown).

      hostrouting check                         the installed CIDRs, or those in /etc/aks-flex-node/config.json
      hostrouting check --cidr 172.16.0.0/16 --cidr 10.96.0.0/12     without a config file
      hostrouting check --cidr fd00:10:96::/108                      IPv6, expected on the IPv4 uplinks
      hostrouting check --cidr 172.16.0.0/16 --snapshot node.json    another host (doesn't wait)
      hostrouting check --uplink eth0                                although another default route wins
      hostrouting check --output svg > check.svg                     a picture for a ticket
      hostrouting check --output nagios                              one line with performance data (doesn't wait)
      hostrouting check --output prometheus > x; mv x hosts.prom   metrics, if the watcher isn't running (doesn't wait)
    """  # noqa: E501
    if options.at_boot is not None:
        return _answer_boot_script(Verdict(options.at_boot), host)
    on = asked_host(options, host)
    is_for_monitoring = options.output in ("nagios", "prometheus")
    chosen = choose(
        options,
        host,
        is_needed=options.snapshot is not None,
        verb="" if is_for_monitoring else "checked",
    )
    document = chosen.document
    config = chosen.config
    if is_for_monitoring:
        config = _without_waits(config)
    # CONFIG may be another host's. So CONFIG's other keys aren't compared with the snapshot.
    result = _check(config, on, document if on.snapshot is None else None)
    rehearsed = _rehearsing(chosen.config, on)
    result = _with_removals(result, rehearsed, chosen, on)
    start: tuple[Note, ...] = ()
    if options.output not in ("svg", "prometheus"):
        is_line = options.output == "nagios"
        start = _start_notes(result, rehearsed, chosen, on, is_line=is_line)
    noted = attrs.evolve(result, notes=(*result.notes, *start))
    if options.output == "nagios":
        from hostrouting.boot.break_glass import why_open

        # A snapshot doesn't include files.
        if on.snapshot is not None:
            code, line = nagios(noted)
        else:
            noted = attrs.evolve(noted, notes=(*noted.notes, *_broken_gate_notes(on)))
            code, line = nagios(noted, why_open(on.layout))
        return Result(noted.to_json, lambda: line, code)
    text = {
        "svg": lambda: overlap_picture(result),
        "prometheus": lambda: _metrics(result, on),
        "text": lambda: "\n".join(
            [
                _check_text(result, start, on, chosen, is_verbose=options.verbose),
                *_uplinks_to_set(options, document, result),
            ]
        ),
    }
    return Result(noted.to_json, lambda: text[options.output](), EXIT_OF_VERDICT[result.verdict])


def _check_text(
    report: OverlapReport,
    start: Iterable[Note],
    host: Host,
    chosen: Chosen,
    *,
    is_verbose: bool,
) -> str:
    width = columns(sys.stdout)
    lines = [overlap_text(report, width=width, config=chosen.name, is_verbose=is_verbose)]
    if chosen.document is None and not report.cidrs:
        lines.append(f"no CONFIG is named, and there is no {host.layout.config}")
    lines += _start_lines(report, start)
    lines += unexpected_lines(chosen.config)
    lines += _next_lines(report, host)
    if host.snapshot is not None:
        taken = clean(host.snapshot.time or "an unknown time")
        lines.append(f"note: the snapshot was taken at {taken}")
    return "\n".join(lines)


def _with_removals(
    report: OverlapReport,
    rehearsed: Callable[[], Rehearsal],
    chosen: Chosen,
    host: Host,
) -> OverlapReport:
    """Return the report, with a caution on the routes that ``apply`` would remove."""
    if chosen.document is None or report.verdict is Verdict.UNKNOWN:
        return report
    try:
        if not host.our_routes():
            return report
        from hostrouting.overlap.unapplied import with_removals

        planned = rehearsed().planned
        return run_function(
            "check",
            lambda scope: with_removals(report, planned, chosen.config, scope, chosen.name),
        )
    except RouteError:  # other lines say why apply would fail
        return report


def _rehearsing(config: Config, host: Host) -> Callable[[], Rehearsal]:
    """Return a function that rehearses the config's installation once."""

    @cache
    def rehearsed() -> Rehearsal:
        from hostrouting.overlap.rehearsal import rehearse

        return run_function("check", lambda scope: rehearse(config, host, scope))

    return rehearsed


def _start_lines(report: OverlapReport, notes: Iterable[Note]) -> list[str]:
    """Return a line for each note that isn't one of the report's cautions."""
    cautions = report.fix.consequences
    return [f"note: {clean(note.message)}" for note in notes if note.message not in cautions]


def _start_notes(
    report: OverlapReport,
    rehearsed: Callable[[], Rehearsal],
    chosen: Chosen,
    host: Host,
    *,
    is_line: bool = False,
) -> tuple[Note, ...]:
    """Return a note if a start would be held, although nothing fails or the mode is WARN.

    If nothing fails, there is also a note if the routes aren't installed. If anything is left of
    what ``fix --format ip`` printed, there is one in any case, and also if no manifest lists what
    is there.
    """
    about_start = _about_trial(chosen, host) or _about_start(report, rehearsed, chosen, host)
    is_known = report.verdict is not Verdict.UNKNOWN
    about_printed = _about_printed(chosen, host, report, is_line=is_line) if is_known else ""
    messages = (about_start, about_printed, _about_manifest(report, chosen, host))
    return tuple(Note(NoteKind.START, each.replace("\n", "; ")) for each in messages if each)


def _about_printed(chosen: Chosen, host: Host, report: OverlapReport, *, is_line: bool) -> str:
    """Return why what ``fix --format ip`` printed can't stay as it is, or an empty string."""
    if not printed_on(host):
        return ""
    from hostrouting.overlap.lasting import advice_on_printed, as_sentence

    file = _lasting_file(chosen, host)
    advise = partial(advice_on_printed, chosen.config, host, file, report)
    advice = run_function("check", advise)
    if is_line and advice is not None:
        # A line is cut, and half of a command is worse than none.
        check_command = f"hostrouting check {chosen.given}".rstrip()
        return f"{advice[0]}; to make it last, see: {check_command}"
    return as_sentence(advice)


def _about_manifest(report: OverlapReport, chosen: Chosen, host: Host) -> str:
    """Return that routes or files of ours are there, but not installed, or an empty string.

    While anything fails, its fix says whether apply helps.
    """
    if host.snapshot is not None or chosen.document is None:
        return ""
    from hostrouting.boot.incomplete import incomplete
    from hostrouting.boot.manifest import Manifest
    from hostrouting.boot.trial_timer import trial_deadline

    apply = f"hostrouting apply {chosen.name or _applicable(chosen)}".rstrip()
    try:
        if left := incomplete(host.layout, apply):
            return f"{left.message}; {left.hint}"
        is_installed = Manifest.load(host.layout).parts or trial_deadline(host.layout.trial)
        if is_installed or not (routes := host.our_routes()):
            return ""
    except (FileError, RouteError):  # the doctor reports these errors
        return ""
    count = counted(len(routes), "route")
    lacking = f"nothing is installed, so the next boot lacks our {count} in the kernel"
    return lacking if report.findings else f"{lacking}: {apply}"


def _applicable(chosen: Chosen) -> str:
    """Return the CONFIG to name if the default CONFIG can't be applied, or an empty string."""
    return "" if chosen.document and SECTION in chosen.document else "CONFIG"


def _lasting_file(chosen: Chosen, host: Host) -> LastingFile:
    """Return the file to write a fix into."""
    from hostrouting.overlap.lasting import lasting_file

    document = chosen.document
    config = None if document is None else Config.from_mapping(document)
    return lasting_file(host, chosen.given, config)


def _about_trial(chosen: Chosen, host: Host) -> str:
    """Return that the kernel has the routes of a trial, or an empty string."""
    if host.snapshot is not None or chosen.document is None:
        return ""
    from hostrouting.boot.trial_timer import TRIAL_HINT, trial_deadline

    try:
        until = trial_deadline(host.layout.trial)
    except FileError:  # the doctor reports this error
        return ""
    if until is None:
        return ""
    return f"a trial is in progress until {until}, and a start ends it: {TRIAL_HINT}"


def _about_start(
    report: OverlapReport,
    rehearsed: Callable[[], Rehearsal],
    chosen: Chosen,
    host: Host,
) -> str:
    """Return the message of ``_start_notes``, or an empty string."""
    if not _is_admitted(report):
        return ""
    if not chosen.config.static_routes.is_wanted:
        # Nothing is installed at a start, but apply removes what is left of former entries.
        return report.fix.consequences[0] if report.fix.would_fail else ""
    try:
        rehearsal = rehearsed()
    except RouteError as error:
        return f"whether the next start is held isn't known: {error.message}"
    if told := _about_installation(rehearsal):
        if _is_installed(chosen, host):
            return _unless_unpredicted(told, host)
        return f"with CONFIG installed, {told}"
    if report.findings:
        return ""  # the failure's fix says what the host lacks
    return _about_passed(report, rehearsal, chosen, host)


def _about_passed(
    report: OverlapReport,
    rehearsal: Rehearsal,
    chosen: Chosen,
    host: Host,
) -> str:
    """Return what the next start meets on a host that passes, or an empty string."""
    if report.fix.would_fail:
        return report.fix.consequences[0]
    if failure := _failure_afterwards(report, rehearsal, chosen.config):
        return _unless_unpredicted(f"the next start that the gate checks is held: {failure}", host)
    overdue = rehearsal.planned.overdue(chosen.config)
    apply = f"hostrouting apply {chosen.name}".rstrip()
    return f"{', and '.join(overdue)}: {apply}" if overdue else ""


def _unless_unpredicted(told: str, host: Host) -> str:
    """Return a prediction of the next start, or that the gate's files have changed."""
    if host.snapshot is not None:
        return told
    from hostrouting.doctor.examine import why_unpredicted

    with suppress(FileError):  # the doctor reports this error
        if why := run_function("check", lambda scope: why_unpredicted(host, scope)):
            return f"whether the next start is held isn't known: {why}"
    return told


def _about_installation(rehearsal: Rehearsal) -> str:
    """Return that the next start can't install the routes, or an empty string."""
    from hostrouting.kernel.known_host import UnknownFactError

    if isinstance(rehearsal.error, UnknownFactError):
        return f"whether the next start is held isn't known: {rehearsal.error.message}"
    if rehearsal.missing is not None:
        waits = f"waits for {rehearsal.missing}, and is then held"
        return f"the next start that the gate checks {waits}"
    if rehearsal.error is not None:
        return f"the next start that the gate checks is held: {rehearsal.reason}"
    return ""


def _is_installed(chosen: Chosen, host: Host) -> bool:
    """Return whether the next start installs the chosen routes; True if that isn't known."""
    if host.snapshot is not None or chosen.document is None:
        return True
    try:
        return _installed(host).static_routes == chosen.config.static_routes
    except FileError:  # the doctor reports this error
        return True


def _failure_afterwards(report: OverlapReport, rehearsal: Rehearsal, config: Config) -> str:
    """Return why a STRICT check would fail after the rehearsed changes, or an empty string."""
    planned = rehearsal.planned
    if not planned.takes_any or report.mode is not OverlapMode.STRICT:
        return ""
    config = planned.host.with_verified(config)
    return run_function("check", lambda scope: planned.failure(config, scope))


def _broken_gate_notes(host: Host) -> Iterator[Note]:
    """Yield a note on the gate's files that the doctor finds missing, changed or unused, if any."""
    from hostrouting.doctor.examine import GATE_CHECKS, examine

    report = run_function(
        "doctor", lambda scope: examine(host=host, checks=GATE_CHECKS, scope=scope)
    )
    broken = [each for each in report.findings if each.is_broken]
    if broken:
        told = (f"{each.subject}: {each.message}" for each in broken)
        yield Note(NoteKind.START, f"{'; '.join(told)}; see: hostrouting doctor")


def _is_admitted(report: OverlapReport) -> bool:
    """Return whether the verdict alone lets a start through."""
    if report.verdict is Verdict.OVERLAP:
        return report.mode is OverlapMode.WARN
    return report.verdict is Verdict.OK


def _uplinks_to_set(
    options: argparse.Namespace,
    document: dict[str, Any] | None,
    report: OverlapReport,
) -> list[str]:
    """Return a line with the uplinks of --uplink, if the printed routes need these in CONFIG."""
    uplinks = [*options.uplink]
    is_set = document is not None and (document.get(SECTION) or {}).get("uplinks") == uplinks
    if not uplinks or is_set or not report.fix.routes:
        return []
    return [f'these routes need hostRouting\'s "uplinks": {json.dumps(uplinks)}, too']


def _metrics(report: OverlapReport, host: Host) -> str:
    from hostrouting.watch.metrics import check_metrics, exposition, gate_metrics

    # A snapshot doesn't include files.
    gate = () if host.snapshot is not None else gate_metrics(host.layout, report.mode)
    taken = time.time() if host.snapshot is None else host.snapshot.taken
    checked = check_metrics(report, None if taken is None else int(taken), must_expect=True)
    return exposition(*gate, *checked).rstrip()


def _installed(host: Host) -> Config:
    from hostrouting.boot.manifest import Manifest

    return Manifest.load(host.layout).config


_FIND_CIDRS = """\
to find the cluster's CIDRs:
  kubectl get nodes -o custom-columns=NODE:.metadata.name,IP:.status.addresses[0].address,PODS:.spec.podCIDR
  az aks show --resource-group G --name N --query networkProfile       podCidr, serviceCidr
  az network vnet show --resource-group G --name V --query addressSpace    the nodes' own"""  # noqa: E501


def _next_lines(report: OverlapReport, host: Host) -> list[str]:
    """Return suggested next steps if there is no verdict."""
    if report.reason_kind is UnknownReason.NO_DEFAULT_ROUTE:
        lacking = {each.family for each in report.families if each.reason == report.reason}
        ip = "ip -6" if Family.IPV6 in lacking else "ip -4"
        return [f"to see why there is none: {ip} address; {ip} route; networkctl status", SIMILAR]
    if report.reason_kind in (UnknownReason.CONTESTED_DEFAULT, UnknownReason.NO_LOCAL_TABLE):
        return [SIMILAR]
    if report.reason_kind is not UnknownReason.NOTHING_EXPECTED:
        return []
    lines: list[str] = []
    for network, devs in taken_networks(host.routes).items():
        ask = "is the cluster's network in there?"
        if network.prefixlen == 32:
            ask = "on Azure, the platform has this address"
        lines.append(f"{network} leaves through {clean(','.join(devs))}: {ask}")
    return [*lines, _FIND_CIDRS]


def _check(config: Config, host: Host, document: dict[str, Any] | None = None) -> OverlapReport:
    return run_function(
        "check",
        lambda scope: queries.check(
            config,
            host=host,
            scope=scope,
            document=document,
        ),
    )


def _without_waits(config: Config) -> Config:
    overlap = attrs.evolve(config.route_overlap, settle_seconds=0)
    return attrs.evolve(config, wait_seconds=0, route_overlap=overlap)


def _answer_boot_script(verdict: Verdict, host: Host) -> Result:
    """Check with the boot script's config on stdin, and print the verdict and the marker's lines.

    The first line names the SHA-256 of the config. The script ignores output without this line:
    another program could also exit with 0 or print "ok". A failure is explained on stderr.

    Args:
        verdict: the script's verdict; ``unknown`` if the script couldn't judge. If this check has
            another verdict, the host has changed: explain nothing, and write no report.
        host: the host on which the script runs.
    """
    from hashlib import sha256

    from hostrouting.boot.files import write_if_changed
    from hostrouting.overlap.markers import marker_text

    text = sys.stdin.buffer.read()
    expected = _without_waits(Config.from_mapping(json.loads(text)))
    # With the installed routes, the fix names only routes that aren't installed yet.
    config = attrs.evolve(expected, static_routes=_installed_routes(host))
    report = _check(config, host)
    if verdict not in (report.verdict, Verdict.UNKNOWN):
        complain(f"hostrouting: the script says {verdict}, and the host is now {report.verdict}")
    elif report.verdict is not Verdict.OK:
        write_if_changed(host.layout.report, to_json_text(report.to_json()))
        notes = (f"{note.kind}: {note.message}" for note in report.notes)
        steps = advice(report, shlex.quote(str(host.layout.manifest)))
        for line in (summary(report), *steps, *notes):
            complain(line)
    name = " ".join(clean(host.name).split())
    answer = f"{report.verdict} on {name} for config {sha256(text).hexdigest()}"
    lines = f"{answer}\n{marker_text(report)}".rstrip()
    return Result(report.to_json, lambda: lines, EXIT_OF_VERDICT[report.verdict])


def _installed_routes(host: Host) -> StaticRoutes:
    """Return the installed config's routes; none if the manifest is broken."""
    try:
        return _installed(host).static_routes
    except FileError as error:
        for line in str(error).splitlines():
            complain(f"hostrouting: {line}")
        return StaticRoutes()


def explain(options: argparse.Namespace, host: Host) -> Result:
    """Explain where traffic to ADDRESS goes, and why.

    The command traces each route lookup that a socket makes for the address: the policy rules in
    order and why the kernel skips each, the matching route, and the outgoing interface. The first
    lookup also selects the source address of a connection, from which the second lookup is made.
    The verdict, the failures and the notes are those of the check for this address. Without a
    CONFIG or a matching CIDR, it expects the uplinks.

    It exits with 0 if the result is as expected, and with 1 if it isn't. It exits with 2 if the
    expected interface is unknown, or if this host doesn't receive what is sent to its own
    addresses.

      hostrouting explain 172.16.3.4
      hostrouting explain 172.16.3.4 config.json --snapshot node.json     on another host
    """
    from hostrouting.cli.pages import explanation_page

    chosen = choose(options, host, is_needed=False)
    on = asked_host(options, host)
    found = run_function(
        "explain",
        lambda scope: queries.explain(options.address, chosen.config, host=on, scope=scope),
    )
    return Result(
        lambda: {"host": on.name} | found.to_json(),
        lambda: page_text(explanation_page(found), columns(sys.stdout)),
        exit_of_result(found.is_as_expected),
    )


def diff(options: argparse.Namespace, host: Host) -> Result:
    """Show which lookups differ between two snapshots of a host, and why.

    A and B are the output of hostrouting snapshot; without B, A is compared with this host as it
    is. For each expected CIDR, the command lists the ranges whose packets now leave through another
    interface or gateway, or with another source. It also lists the changes that explain this: with
    all of them undone, the old results would be back. All other changes are counted, and listed
    with -v. Every address is compared, not just a sample. Without --config or --cidr, the installed
    CIDRs are compared, or else all addresses of the families in both snapshots.

    It exits with 0 if no lookup differs, with 1 if a lookup differs, and with 2 if that isn't
    known.

      hostrouting diff monday.json                          what has changed on this host since Monday?
      hostrouting diff good.json bad.json --cidr 172.16.0.0/16
      hostrouting diff /var/lib/hostrouting/good.json /var/lib/hostrouting/bad.json    what made the check fail?
    """  # noqa: E501
    from hostrouting.cli.difference import difference_page

    before = load_snapshot(options.before)
    after = None if options.after is None else load_snapshot(options.after)
    config = choose(options, host, is_needed=False, verb="compared").config
    found = run_function(
        "diff",
        lambda scope: queries.diff(before, after, config, host=host, scope=scope),
    )
    if found.host_before != found.host:
        hosts = (clean(found.host_before or ""), clean(found.host or ""))
        complain(f"warning: A is a snapshot of {hosts[0]}, and B is of {hosts[1]}")
    if before.time and found.after and before.time > found.after:
        times = f"{before.time} and {found.after}"
        complain(f"warning: A is newer than B ({times}), so what came is shown as what went")

    def text() -> str:
        width = columns(sys.stdout)
        return page_text(difference_page(found, width, is_verbose=options.verbose), width)

    is_same = None if found.differs is None else not found.differs
    return Result(found.to_json, text, exit_of_result(is_same))


def fix(options: argparse.Namespace, host: Host) -> Result:
    """Print a config that fixes the failures found by the check.

    The config is CONFIG, or what is installed, with the fewest routes that fix every failing
    address and change no other. Where a policy rule decides before table main, the fix has rules,
    too. If routes cut off InfiniBand's own addresses, now or after the fix, it keeps these. The
    command changes nothing, unless --in-place writes the fix into CONFIG; the rest of the file
    stays as it is, byte for byte. On stderr, it reports what can't be fixed, side effects and, if
    nothing fails, interfaces that may be kept.

    CONFIG's routes, rules and kept interfaces count as installed; --format ip also prints those that
    aren't. What it has added counts as gone, as after the next boot. If apply alone fixes everything, the command says so, and exits
    with 1. With --cidr alone, the document has only the CIDRs and the fix. If systemd-networkd
    would remove rules of the fix, CONFIG gets the watcher. Without CONFIG, --in-place updates the
    default CONFIG. It refuses a default CONFIG that differs from what is installed in more than
    routes, rules and kept interfaces. --format netplan or networkd warns if an interface has more
    than 8,000 routes, because systemd-networkd drops the rest and reports success.

    It exits with 0 on success, and with 2 if there is no verdict. It exits with 1, and still prints
    the rest, if some failures can't be fixed (by --format ip: without apply), if apply would fail,
    or if several default routes make it unclear which interface is the uplink. With --in-place, it exits with 0 if apply fixes
    everything.

      hostrouting fix --in-place && hostrouting apply                the default CONFIG
      hostrouting fix --in-place config.json && hostrouting apply config.json
      hostrouting fix config.json > fixed.json                      to review it first; config.json isn't changed
      hostrouting fix --cidr 172.16.0.0/16 --format netplan          for a host whose routes are managed by netplan
      hostrouting fix --cidr 172.16.0.0/16 --snapshot node.json      for another host, from its snapshot
    """  # noqa: E501
    asked = asked_host(options, host)
    chosen = _chosen_to_fix(options, host)
    document = chosen.document
    config = chosen.config
    on = _without_printed(config, asked)
    result = _unfixed(config, on, has_config=document is not None)
    said = fix_lines(
        result,
        chosen.name,
        shows_entries=options.in_place,
        is_verbose=options.verbose,
    )
    if on is not asked:
        said.append(_AS_AFTER_BOOT)
    rehearsed = _rehearsing(config, asked)
    start = _start_notes(result, lambda: rehearsed().within_fix(), chosen, asked)
    said += _start_lines(result, start)
    said += unexpected_lines(config)
    for line in (*said, *_next_lines(result, on), *_contested_lines(result)):
        complain(line)

    proposal: Any = None
    warnings: tuple[str, ...] = ()
    if result.findings or not _is_unknown(result):
        proposal, warnings = _propose(
            options, document, config, on, result, _lasting_file(chosen, asked)
        )
    changes = Changes()
    if options.in_place:
        changes = _write_in_place(config_path(options, host), document, proposal)
    told = {
        "host": result.host,
        **changes.to_json(),
        "overlap": result.to_json(),
        "fix": result.fix.to_json(),
        "format": options.format,
        "proposal": proposal,
        "warnings": [*warnings],
    }
    text = _proposal_text(proposal)
    if options.in_place:
        text = "\n".join(_written_lines(changes, result, chosen.name))
    code = _code_of_fix(result, config, adds=_adds(options, document, proposal))
    if options.format == "ip" and warnings:
        code = code or exit_of_result(False)
    return Result(lambda: told, lambda: text, code, warnings)


def _adds(options: argparse.Namespace, document: Any, proposal: Any) -> bool:
    """Return whether a proposal has more than CONFIG, or is written into CONFIG."""
    adds = proposal != document if options.format == "config" else bool(proposal)
    return adds or bool(options.in_place)


_AS_AFTER_BOOT = "note: this is about the host without what hostrouting fix --format ip printed"


def _without_printed(config: Config, host: Host) -> Host:
    """Return the host without what ``fix --format ip`` printed, so that a fix replaces that."""
    try:
        printed = printed_on(host)
    except RouteError:  # the check reports this error, too
        return host
    if not printed:
        return host
    from hostrouting.overlap.planned_host import without_printed

    return run_function("check", lambda scope: without_printed(config, host, printed, scope))


def _is_unknown(report: OverlapReport) -> bool:
    return report.verdict is Verdict.UNKNOWN and bool(report.cidrs)


def _code_of_fix(report: OverlapReport, config: Config, *, adds: bool) -> int:
    """Return the exit code of ``fix``; the arguments are those of ``_is_left``."""
    if _is_unknown(report):
        return EXIT_CHECK_UNKNOWN
    return exit_of_result(not _is_left(report, config, adds=adds))


def _is_left(report: OverlapReport, config: Config, *, adds: bool) -> bool:
    """Return whether failures remain after a proposal is applied.

    Args:
        report: the report with the fix.
        config: the config to fix.
        adds: whether the proposal adds anything, or is in the file that apply installs.
    """
    is_contested = config.uplinks is None and bool(_contested_lines(report))
    is_unasked = is_contested and bool(report.findings)
    is_unapplied = report.fix.needs_apply and not adds
    fix = report.fix
    # The fix's entries make an apply succeed that would fail without them.
    is_refused = fix.would_fail and not fix.entries.is_wanted
    return bool(fix.unfixable) or is_refused or is_unasked or is_unapplied


def _chosen_to_fix(options: argparse.Namespace, host: Host) -> Chosen:
    """Return the config to fix. --in-place refuses the manifest."""
    if not options.in_place:
        return choose(options, host)
    from hostrouting.cli.default_config import refuse_in_place, refuse_manifest

    if options.config is not None:
        refuse_manifest(config_path(options, host), host)
        return choose_default(options, host)
    if options.cidr:
        why = "--in-place needs a CONFIG in addition to --cidr"
        raise UsageError(why, hint=f"if there is none, {WRITE_FIRST}")
    chosen = choose_default(options, host)
    refuse_in_place(chosen.document or {}, chosen.config, host)
    return chosen


def _unfixed(config: Config, host: Host, *, has_config: bool) -> OverlapReport:
    """Return a report whose fix is an addition to CONFIG.

    With a CONFIG, its routes count as installed, and our other routes as removed. With --cidr
    alone, our routes in the kernel count, because the user's config isn't known.

    If nothing fails, but CONFIG's routes can't be installed, a caution says so.

    Raises:
        RouteOverlapError: something fails, and CONFIG's routes can't be installed.
        RouteError: there is no verdict, and CONFIG's routes can't be installed; or whether they can
            be installed isn't known.
    """
    if not has_config:
        from hostrouting.overlap.planned_host import PlannedHost
        from hostrouting.routes.plan import RoutePlan

        as_it_is = PlannedHost(host, RoutePlan())
        return _with_offers(_check_on(config, host, None), config, as_it_is)
    from hostrouting.kernel.known_host import UnknownFactError
    from hostrouting.overlap.planned_host import as_installed
    from hostrouting.overlap.unapplied import (
        compared_with_now,
        fix_without_keep,
        naming_wrong,
        on_top,
        refuse_needless,
        with_failure,
        with_nothing_proposed,
    )

    try:
        planned = as_installed(config, host)
        planned.refuse_unkept()
        report = _check_on(config, host, planned.backend)
        if report.verdict is not Verdict.UNKNOWN:
            report = run_function(
                "check", lambda scope: naming_wrong(report, planned, config, scope)
            )
            run_function("check", lambda scope: refuse_needless(report, planned, config, scope))
    except RouteError as raised:
        error = raised.within_fix()
        now = _check_on(_without_waits(config), host, None)
        if now.findings:
            later = run_function("check", lambda scope: fix_without_keep(config, host, scope))
            refused = with_nothing_proposed(now, error, later)
            bare = attrs.evolve(now, fix=Fix(unfixable=refused.fix.unfixable))
            for line in fix_lines(bare):
                complain(line)
            raise RouteOverlapError(error.message, now, hint=error.hint) from error
        if now.verdict is not Verdict.OK or isinstance(error, UnknownFactError):
            raise
        return with_failure(now, error)
    if planned.plan.changes and report.verdict is not Verdict.UNKNOWN:
        now = _check_on(_without_waits(config), host, None)
        if now.findings:
            return run_function(
                "check",
                lambda scope: on_top(Checked.of(now), report, planned, config, scope),
            )
        if report.findings and now.verdict is Verdict.OK:
            return run_function(
                "check",
                lambda scope: compared_with_now(report, config, host, scope),
            )
    return _with_offers(report, config, planned)


def _check_on(
    config: Config,
    host: Host,
    backends: Callable[[Family], RouteBackend] | None,
) -> OverlapReport:
    return run_function("check", lambda scope: queries.check_kernel(config, host, backends, scope))


def _propose(
    options: argparse.Namespace,
    document: dict[str, Any] | None,
    config: Config,
    host: Host,
    report: OverlapReport,
    file: LastingFile,
) -> tuple[Any, tuple[str, ...]]:
    """Return a fix in the format of --format, and warnings about what the format can't hold."""
    from hostrouting.cli.edit_config import merged

    if options.format != "config":
        return _in_format(options.format, report, host, config, file)
    watches = _needs_watcher(config, host, report.fix)
    if watches:
        complain(_WATCHES)
    proposal = merged(
        document,
        report.fix.entries,
        options.cidr,
        uplinks=options.uplink,
        watches=watches,
    )
    return proposal, ()


def _write_in_place(
    path: os.PathLike[str] | str,
    document: dict[str, Any] | None,
    proposal: Any,
) -> Changes:
    """Write the proposed section into CONFIG's file, unless the file already has it."""
    from hostrouting.cli.edit_config import set_sections

    if proposal is None or proposal == document:
        return Changes()
    return set_sections(path, {SECTION: proposal[SECTION]}, known=document)


def _written_lines(changes: Changes, report: OverlapReport, config: str) -> list[str]:
    """Return lines on what --in-place has written. The last one points back at cautions."""
    lines = changes_lines(changes) or [NOTHING]
    count = len(report.fix.consequences) + len(_contested_lines(report))
    if report.findings and count:
        apply = f"hostrouting apply {config}".rstrip()
        cautions = "caution" if count == 1 else f"{count} cautions"
        lines.append(f"before {apply}, read the {cautions} above")
    return lines


def _contested_lines(report: OverlapReport) -> list[str]:
    contested = (note for note in report.notes if note.kind is NoteKind.CONTESTED)
    return [f"caution: {clean(note.message)}" for note in contested]


def _proposal_text(proposal: Any) -> str:
    if isinstance(proposal, str):
        return proposal
    return "" if proposal is None else to_json_text(proposal).rstrip()


def _with_offers(report: OverlapReport, config: Config, planned: PlannedHost) -> OverlapReport:
    """Return the report; if nothing fails, with ``keep`` for InfiniBand and offers for others."""
    if report.verdict is not Verdict.OK:
        return report
    from hostrouting.overlap.offers import keep_offers
    from hostrouting.overlap.unapplied import with_keep

    config = planned.host.with_verified(config)
    report = run_function("check", lambda scope: with_keep(report, planned, config, scope))
    fix = report.fix
    backend = planned.backend(Family.IPV4)
    offers = run_function("check", lambda scope: keep_offers(config, backend, scope, fix.keep))
    lines = (*fix.consequences, *map(str, offers))
    return attrs.evolve(report, fix=attrs.evolve(fix, consequences=lines))


_WATCHES = (
    "hint: systemd-networkd runs, and removes other programs' policy rules: "
    "the proposal enables the watcher (hostRouting.watch), which restores them"
)


def _needs_watcher(config: Config, host: Host, fix: Fix) -> bool:
    """Return whether a fix has rules that systemd-networkd would remove for good."""
    from hostrouting.tasks.configure import removes_our_rules

    is_set = config.watch.enabled or host.snapshot is not None or host.is_image
    return bool(fix.rules or fix.keep) and not is_set and removes_our_rules(host)


def _placed_rules(plan: RoutePlan, report: OverlapReport, host: Host) -> list[formats.PlacedRule]:
    """Return a plan's rules, each with the interface into whose file it is written.

    A rule for a source address is written into the file of the interface with this address, any
    other rule into the uplink's file.
    """
    owners = {each.local: each.dev for each in host.routes.facts().addresses}
    uplink = next(iter(report.default_devs), "")
    placed: list[formats.PlacedRule] = []
    for policy in plan.policies:
        for rule in policy.wanted.rules:
            dev = uplink if rule.source is None else owners[rule.source.network_address]
            placed.append(formats.PlacedRule(rule, dev))
    return placed


def _in_format(
    form: str,
    report: OverlapReport,
    host: Host,
    config: Config,
    file: LastingFile,
) -> tuple[str, tuple[str, ...]]:
    """Return a fix in another program's format, and warnings about what it won't install.

    As commands, it also has the entries of CONFIG that aren't installed, so that these commands are
    enough until ``apply`` can run.
    """
    from hostrouting.routes.plan import plan_or_raise

    warnings: tuple[str, ...] = ()
    config = host.with_verified(config)
    if form == "ip":
        plan, warnings = _plan_of_commands(report, host, config)
    else:
        config = attrs.evolve(config, static_routes=report.fix.entries)
        backends = host.backends(config.static_routes.families)
        plan = plan_or_raise(config, "fill in the routes", *backends)
    side = (route for policy in plan.policies for route in policy.wanted.routes)
    routes = (*plan.wanted, *side)
    rules = _placed_rules(plan, report, host)
    if form == "ip":
        in_place = file.fix(config)
        listing = "" if report.fix.entries.is_wanted else file.apply_listed
        return formats.as_ip(routes, rules, in_place, listing).rstrip(), warnings
    write = formats.as_netplan if form == "netplan" else formats.as_networkd
    warnings = formats.too_many_for_networkd(routes)
    return write(routes, rules).rstrip(), tuple(map(clean, warnings))


def _plan_of_commands(
    report: OverlapReport,
    host: Host,
    config: Config,
) -> tuple[RoutePlan, tuple[str, ...]]:
    """Return what commands can add, and a warning if the check would fail nevertheless."""
    from hostrouting.overlap.planned_host import planned_host
    from hostrouting.overlap.unapplied import additions
    from hostrouting.routes.plan import RoutePlan

    if not (report.fix.entries.is_wanted or report.fix.needs_apply):
        return RoutePlan(), ()
    plan = additions(report, config, host)
    if not report.findings:
        return plan, ()
    failure = run_function(
        "check", lambda scope: planned_host(config, host, plan, scope).failure(config, scope)
    )
    return plan, (f"commands alone don't fix everything: {failure}",) if failure else ()


_IS_CONFIG = "the first of several arguments is CONFIG, unless it is a folder or a snapshot"


def judge(options: argparse.Namespace, host: Host) -> Result:
    """Check many hosts from their snapshots, and group them by failure.

    Each FILE is the output of hostrouting snapshot from one host, and a FOLDER holds such files
    (*.json). Without CONFIG, the CIDRs of --cidr are expected, or those that are installed on this
    host; beside --cidr, CONFIG needs the key hostRouting. Hosts with the same failures (kind, CIDR,
    interfaces) and the same fix are one group. Hosts are listed by the names of their files, as
    Ansible's --limit takes them; -v lists all. A FILE that can't be read, or takes too much time or
    memory, has the verdict unknown, with the reason. With --since, hosts are also grouped by what
    has changed their lookups since the earlier snapshots in that folder. The command uses all
    cores; docs/howto/fleet.md shows how to use several machines.

    It exits with 0 if all hosts pass, and with 1 if any host fails, or apply would fail on it.
    Otherwise, it exits with 2 if a verdict is unknown.

      hostrouting judge config.json snapshots
      hostrouting judge --cidr 172.16.0.0/16 snapshots          without a config file
      hostrouting judge config.json today --since yesterday
      hostrouting judge config.json snapshots --output html > fleet.html    needs Jinja
    """
    from hostrouting.cli import fleet
    from hostrouting.fleet.judge import judge as judge_all

    if options.output == "html" and find_spec("jinja2") is None:
        how = "pip install '/path/to/hostrouting[html]' (a clone or a wheel)"
        raise HostRoutingError("--output html needs jinja2, which isn't installed", hint=how)
    options.config, files = config_and_snapshots(options)
    try:
        config = choose(options, host).config
    except ConfigError as error:
        if options.config is not None and not error.hint:
            error.hint = _IS_CONFIG
        raise
    # Other processes read the files, and don't have this process's /dev/stdin and /dev/fd. So read
    # snapshots from there now.
    snapshots = [*map(readable_elsewhere, files)]
    report = run_function(
        "judge",
        lambda scope: judge_all(snapshots, config, scope=scope, since=options.since),
        waits=False,
    )
    is_good = None if report.counts[Verdict.UNKNOWN] else True
    if report.counts[Verdict.OVERLAP] or report.would_fail:
        is_good = False
    text = partial(
        fleet.fleet_text,
        report,
        columns(sys.stdout),
        is_verbose=options.verbose,
    )
    if options.output == "html":
        text = partial(fleet.fleet_page, report, is_verbose=options.verbose)
    return Result(report.to_json, text, exit_of_result(is_good))


def doctor(options: argparse.Namespace, host: Host) -> Result:
    """Report whether this host's gate works, and what may break it.

    The doctor reports the check's current verdict, and examines the loaded systemd units, every
    installed file, the kernel's routes, and programs that may remove these routes. It prints a hint
    with each finding, and changes nothing. If nothing is installed, it says so, and reports no
    verdict: run hostrouting check. With neither CONFIG nor the default config, it compares the
    installation with the config that was used to create it.

    It exits with 1 if anything is broken or couldn't be examined, and with 0 otherwise. Risks alone
    are no failure.

    With --output preflight it prints JSON in AKSFlexNode's preflight format, without any values
    from CONFIG.

      ✓ fine;  ✗ broken now;  • may break later;  ? couldn't be examined
    """
    from hostrouting.cli.azure import sections
    from hostrouting.cli.pages import doctor_page
    from hostrouting.cli.preflight import preflight
    from hostrouting.doctor.examine import CHECKS, examine

    is_preflight = options.output == "preflight"
    if not is_preflight and (options.ignore_preflight_errors or options.fail_on_warnings):
        raise UsageError(
            "--ignore-preflight-errors and --fail-on-warnings require --output preflight"
        )
    host = options.image or host
    is_there = has_config(options, host)
    config = load(options, host) if is_there else None
    name = _config_name(options, is_there=is_there)
    checks = CHECKS + sections.checks(options, host, has_config=is_there)
    report = run_function(
        "doctor",
        lambda scope: examine(
            config,
            host=host,
            checks=checks,
            config_name=name,
            scope=scope,
        ),
    )
    if is_preflight:
        is_strict = options.fail_on_warnings or options.strict
        ignored = options.ignore_preflight_errors
        document = preflight(report, ignored=ignored, fails_on_warnings=is_strict)
        text = to_json_text(document).rstrip()
        is_fine = document["status"] == "ok"
        return Result(text=lambda: text, code=exit_of_result(is_fine))
    is_fine = not (report.is_broken or (options.strict and report.findings))
    notes = unexpected_lines(_installed_or_empty(host) if config is None else config)
    return Result(
        report.to_json,
        lambda: page_text(doctor_page(report, notes), columns(sys.stdout)),
        exit_of_result(is_fine),
    )


def _installed_or_empty(host: Host) -> Config:
    """Return the installed config, or an empty one if the manifest is broken."""
    try:
        return _installed(host)
    except FileError:
        return Config()


def _config_name(options: argparse.Namespace, *, is_there: bool) -> str:
    """Return the argument to print for CONFIG; empty for a default CONFIG that exists."""
    if options.config is None:
        return "" if is_there else "CONFIG"
    return shlex.quote(options.config or "CONFIG")
