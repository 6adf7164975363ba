"""The commands that judge a host; each docstring is the command's help."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

import phases
from hostrouting.cli.layout import page_text
from hostrouting.cli.options import UsageError, asked_host, has_config, load, read, read_with_cidrs
from hostrouting.cli.output import columns, complain, say
from hostrouting.cli.running import EXIT_CHECK_UNKNOWN, EXIT_FAILURE, run_task, say_as_asked, say_json
from hostrouting.model.errors import HostRoutingError, RouteError
from hostrouting.model.jsonable import to_json_text
from hostrouting.model.routes import Table
from hostrouting.model.text import clean

if TYPE_CHECKING:
    from pathlib import Path

    from hostrouting.boot.host import Host
    from hostrouting.config.routing import Config, StaticRoute
    from hostrouting.model.changes import Changes
    from hostrouting.overlap.findings import OverlapReport


def check(options: argparse.Namespace, host: Host) -> int:
    """Check now that every expected CIDR leaves through the node's uplink.

    The check judges every address. It cuts each CIDR into ranges inside which the kernel's answer can't change, and
    asks the kernel about each range. If a policy rule has a "from", it also asks about connections from the source
    address that the kernel would choose for them. It waits at most waitSeconds for a default route (30 without a
    CONFIG), and for InfiniBand's addresses as settleSeconds says. It writes no marker. With --one-event it also says
    what a single event would break, which changes neither the verdict nor the exit code. It exits with 0 if all is
    well, with 1 if a CIDR is shadowed, has no route or is discarded, and with 2 if it can't judge. With --output nagios
    it exits with 0, 1 (failures, WARN), 2 (failures, STRICT) or 3.

      hostrouting check                         the CIDRs of /etc/aks-flex-node/config.json, or of the installation
      hostrouting check --cidr 172.16.0.0/16 --cidr 10.96.0.0/12     no file is read
      hostrouting check --cidr 172.16.0.0/16 --snapshot node.json    another host (waits for nothing)
      hostrouting check --one-event             also after each event that an interface or a network manager may have
      hostrouting check --output svg > check.svg                     a picture for a ticket
      hostrouting check --output nagios                              one line with performance data (waits for nothing)
      hostrouting check --output prometheus > x; mv x hosts.prom   metrics, where no watcher writes them (likewise)
    """
    from hostrouting.cli.nagios import nagios
    from hostrouting.cli.report import overlap_picture, overlap_text
    from hostrouting.overlap.findings import Verdict

    if options.report:
        return _explain_verdict(host)
    on = asked_host(options, host)
    document, config = read_with_cidrs(options, host) if _is_asked(options, host) else (None, _installed(host))
    if options.output in ("nagios", "prometheus"):
        config = _without_waits(config)
    # CONFIG may be meant for another host than the snapshot's.
    result = _check(config, on, document if on.snapshot is None else None, one_event=options.one_event)
    if options.output == "nagios":
        code, line = nagios(result)
        say(line)
        return code
    if options.output == "json":
        say_json(result.to_json())
    elif options.output == "svg":
        say(overlap_picture(result))
    elif options.output == "prometheus":
        from hostrouting.overlap.metrics import check_metrics, exposition, gate_metrics

        # There are no files in a snapshot.
        gate = () if on.snapshot is not None else gate_metrics(on.layout, result.mode)
        say(exposition(*gate, *check_metrics(result, int(time.time()))).rstrip())
    else:
        say(overlap_text(result, width=columns(sys.stdout)))
        for line in _next_lines(result, on):
            say(line)
    return {Verdict.OK: 0, Verdict.OVERLAP: EXIT_FAILURE, Verdict.UNKNOWN: EXIT_CHECK_UNKNOWN}[result.verdict]


def _is_asked(options: argparse.Namespace, host: Host) -> bool:
    """Return whether the expectations come from the command line or the default config, or a snapshot was given."""
    return bool(options.cidr) or options.snapshot is not None or has_config(options, host)


def _installed(host: Host) -> Config:
    from hostrouting.boot.manifest import Manifest

    return Manifest.load(host.layout).config


_FIND_CIDRS = """\
to find the cluster's CIDRs:
  kubectl get nodes -o custom-columns=NODE:.metadata.name,IP:.status.addresses[0].address,PODS:.spec.podCIDR
  az aks show --resource-group G --name N --query networkProfile       podCidr, serviceCidr
  az network vnet show --resource-group G --name V --query addressSpace    the nodes' own"""


def _next_lines(report: OverlapReport, host: Host) -> list[str]:
    """Return the next steps for the user if nothing could be judged."""
    from hostrouting.overlap.findings import UnknownReason

    if report.reason_kind is UnknownReason.NO_DEFAULT_ROUTE:
        return ["to see why there is none: ip -4 address; ip -4 route; networkctl status"]
    if report.reason_kind is not UnknownReason.NOTHING_EXPECTED:
        return []
    from hostrouting.overlap.suspects import taken_networks

    taken = taken_networks(host.routes)
    asks = [
        f"{network} leaves by {clean(','.join(devs))}: is the cluster's network in there?"
        for network, devs in taken.items()
    ]
    return [*asks, _FIND_CIDRS]


def _check(
    config: Config, host: Host, document: dict[str, Any] | None = None, *, one_event: bool = False
) -> OverlapReport:
    from hostrouting.tasks import queries

    task = phases.task("check")(
        lambda scope: queries.check(config, host=host, scope=scope, document=document, one_event=one_event)
    )
    return run_task(task)


def _without_waits(config: Config) -> Config:
    overlap = attrs.evolve(config.route_overlap, settle_seconds=0)
    return attrs.evolve(config, wait_seconds=0, route_overlap=overlap)


def _explain_verdict(host: Host) -> int:
    """Judge again with the installed config, explain the verdict on standard error, and write the report.

    Returns:
        0, or 1 if the marker disagrees. In that case nothing is explained or written, because the script's verdict
        counts.
    """
    from hostrouting.boot.files import write_if_changed
    from hostrouting.boot.manifest import Manifest
    from hostrouting.overlap.markers import marked_verdict
    from hostrouting.overlap.wording import advice, summary

    report = _check(_without_waits(Manifest.load(host.layout).config), host)
    marked = marked_verdict(host.layout)
    if report.verdict is not marked:
        complain(f"hostrouting: the marker says {marked}, and the host is now {report.verdict}")
        return EXIT_FAILURE
    write_if_changed(host.layout.report, to_json_text(report.to_json()))
    for line in (summary(report), *advice(report), *(f"{note.kind}: {note.message}" for note in report.notes)):
        complain(line)
    return 0


def explain(options: argparse.Namespace, host: Host) -> int:
    """Explain where traffic to ADDRESS goes, and why.

    The command follows each lookup that a socket makes for the address. It shows the policy rules in their order and
    why the kernel passes each, the entry that wins in a table, the interface, and the source address that a connection
    gets. Then it follows the second lookup, which uses that source. It compares the result with CONFIG's expectation
    for the CIDRs around the address. Without a CONFIG, or if no CIDR contains the address, it expects the uplinks. It
    exits with 0 if the address goes as expected, with 1 if not, and with 2 if there is nothing to compare with.

      hostrouting explain 172.16.3.4
      hostrouting explain 172.16.3.4 config.json --snapshot node.json     on another host
    """
    from hostrouting.cli.pages import explanation_page
    from hostrouting.tasks import queries

    config = load(options, host) if has_config(options, host) else None
    on = asked_host(options, host)
    task = phases.task("explain")(lambda scope: queries.explain(options.address, config, host=on, scope=scope))
    found = run_task(task)
    say_as_asked(
        options,
        lambda: {"host": on.name} | found.to_json(),
        lambda: page_text(explanation_page(found), columns(sys.stdout)),
    )
    return {True: 0, False: EXIT_FAILURE, None: EXIT_CHECK_UNKNOWN}[found.is_as_expected]


def fix(options: argparse.Namespace, host: Host) -> int:
    """Print the config that fixes what a check finds.

    The fix consists of the fewest routes that cover every failing address and no address that is fine. Each route is
    longer than the route that wins there. With CONFIG the command prints the whole document with these routes merged
    in, as if its own routes were already installed. With --cidr alone it prints a document that has only the proposal.
    On standard error it says what no route can fix, and what else the fix changes. It changes nothing itself, unless
    --in-place makes it write CONFIG's file, in which all text outside hostRouting stays the same byte for byte. It
    exits with 0, with 1 if something isn't fixable (it prints the rest), and with 2 if it can't judge.

      hostrouting fix --in-place config.json && hostrouting apply config.json
      hostrouting fix config.json > fixed.json                      to review it first; config.json isn't changed
      hostrouting fix --cidr 172.16.0.0/16 --format netplan          for a host whose routes netplan keeps
      hostrouting fix --cidr 172.16.0.0/16 --snapshot node.json      for another host, from its snapshot
    """
    from hostrouting.boot.nameservers import nameservers
    from hostrouting.cli.changes import NOTHING, changes_lines
    from hostrouting.cli.report import fix_lines
    from hostrouting.model.changes import Changes
    from hostrouting.overlap.findings import NoteKind, Verdict
    from hostrouting.tasks import queries
    from hostrouting.tasks.preview import as_installed

    document, config = read_with_cidrs(options, host)
    if options.in_place and document is None:
        raise UsageError("--in-place changes a config: name it beside --cidr")
    on = asked_host(options, host)
    # A config says everything that is wanted. A proposal for CIDRs alone will be added to a config that isn't known
    # here.
    backend = on.routes if document is None else as_installed(config, on.routes)
    servers = nameservers(on.layout) if on.snapshot is None else on.snapshot.nameservers
    task = phases.task("check")(lambda scope: queries.check_kernel(config, on, backend, scope, servers))
    result = run_task(task)
    contested = (f"mind: {clean(note.message)}" for note in result.notes if note.kind is NoteKind.CONTESTED)
    for line in (*fix_lines(result), *contested):
        complain(line)
    proposal, changes = None, Changes()
    if is_judged := result.verdict is not Verdict.UNKNOWN or not result.cidrs:
        if config.static_routes.routes and backend is not on.routes:
            complain("the fix relies on the routes that CONFIG already has; hostrouting apply installs them")
        path = host.layout.config if options.config is None else options.config
        proposal, changes = _proposal(options, document, result.fix.routes, on, path, config.uplinks)
    if options.output == "json":
        found = {"overlap": result.to_json(), "fix": result.fix.to_json()}
        say_json({"host": result.host} | changes.to_json() | found | {"format": options.format, "proposal": proposal})
    elif options.in_place:
        say("\n".join(changes_lines(changes)) or NOTHING)
    elif proposal is not None:
        say(proposal if isinstance(proposal, str) else to_json_text(proposal).rstrip())
    if not is_judged:
        return EXIT_CHECK_UNKNOWN
    return EXIT_FAILURE if result.fix.unfixable else 0


def _proposal(
    options: argparse.Namespace,
    document: dict[str, Any] | None,
    entries: Sequence[StaticRoute],
    on: Host,
    path: Path | str,
    uplinks: tuple[str, ...] | None,
) -> tuple[dict[str, Any] | str, Changes]:
    """Return the proposal, as a document or in another format, and the changes that were made to write it."""
    from hostrouting.cli.fixing import fixed
    from hostrouting.model.changes import Changes
    from hostrouting.routes import formats
    from hostrouting.routes.resolve import resolve

    if options.format != "config":
        kernel = on.routes
        main = kernel.routes(Table.MAIN)
        routes, missing = resolve(entries, kernel.links(), kernel.addresses(), main, uplinks)
        if missing:
            raise RouteError(f"can't fill in the routes without {missing}")
        write = {"ip": formats.as_ip, "netplan": formats.as_netplan, "networkd": formats.as_networkd}[options.format]
        return write(routes).rstrip(), Changes()
    if document is not None and entries and not options.in_place:
        complain(f"{clean(str(path))} isn't changed; --in-place writes it there")
    return fixed(path, document, entries, options.cidr, is_in_place=options.in_place)


def judge(options: argparse.Namespace, host: Host) -> int:
    """Check many hosts from their snapshots at once, and group them by what is wrong.

    Each FILE is the output of hostrouting snapshot on a host. If it doesn't name the host, the file's name is used.
    Hosts with the same failures (kind, CIDR, interfaces) and the same fix form one group. If a FILE can't be read, or
    takes too much time or memory, the verdict on its host is unknown, and the command continues with the others. With
    --one-event, hosts that a single event would lead astray permanently form separate groups. The command uses all
    cores, and docs/howto/many-hosts.md shows how to use more machines. It exits with 0 if all is well, with 1 if a host
    fails, and otherwise with 2 if a host can't be judged.

      hostrouting judge config.json snapshots/*.json
      hostrouting judge config.json snapshots/*.json --output html > fleet.html    needs hostrouting[html]
    """
    from importlib.util import find_spec

    from hostrouting.cli import fleet
    from hostrouting.overlap.findings import Verdict
    from hostrouting.overlap.fleet import judge as judge_all

    library = fleet.LIBRARIES.get(options.output)
    if library is not None and find_spec(library) is None:
        how = f"pip install 'hostrouting[{options.output}]'"
        raise HostRoutingError(f"--output {options.output} needs {library}, which isn't installed", hint=how)
    config = load(options, host)
    report = run_task(
        phases.task("judge")(
            lambda scope: judge_all(
                options.snapshots, config, max_mib=options.max_mib, scope=scope, one_event=options.one_event
            ),
        )
    )
    if options.output == "html":
        say(fleet.fleet_page(report))
    else:
        say_as_asked(options, report.to_json, lambda: fleet.fleet_text(report, columns(sys.stdout)))
    if report.counts[Verdict.OVERLAP]:
        return EXIT_FAILURE
    return EXIT_CHECK_UNKNOWN if report.counts[Verdict.UNKNOWN] else 0


def doctor(options: argparse.Namespace, host: Host) -> int:
    """Say whether the gate on this host holds, and what may break it.

    The doctor first reports the check's current verdict. Then it examines the units as systemd has loaded them, every
    installed file, the kernel's routes, and programs that may remove these routes. It prints a fix with each finding,
    and changes nothing. If there is no CONFIG, and no default one either, it compares the installation with the config
    that it was made from. It exits with 1 if anything is broken, and otherwise with 0, even if it lists things that may
    break later.

    With --output preflight it prints JSON in the form of AKSFlexNode's preflight, without any value of CONFIG.

      ✓ is fine;  ✗ is broken now;  • may break later;  ? couldn't be examined
    """
    import shlex

    from hostrouting.cli.azure import sections
    from hostrouting.cli.pages import doctor_page
    from hostrouting.cli.preflight import preflight
    from hostrouting.doctor.examine import CHECKS, examine

    is_preflight = options.output == "preflight"
    if not is_preflight and (options.ignore_preflight_errors or options.fail_on_warnings):
        raise UsageError("--ignore-preflight-errors and --fail-on-warnings are for --output preflight")
    host = options.image or host
    is_there = has_config(options, host)
    name = "" if options.config is None and is_there else shlex.quote(options.config or "CONFIG")
    document, config = read(options, host) if is_there else (None, None)
    checks = CHECKS + sections.checks(options, host, has_config=is_there)
    report = run_task(
        phases.task("doctor")(
            lambda scope: examine(config, host=host, checks=checks, config_name=name, scope=scope, document=document)
        )
    )
    if is_preflight:
        is_strict = options.fail_on_warnings or options.strict
        document = preflight(report, ignored=options.ignore_preflight_errors, fails_on_warnings=is_strict)
        say(to_json_text(document).rstrip())
        return 0 if document["status"] == "ok" else EXIT_FAILURE
    say_as_asked(options, report.to_json, lambda: page_text(doctor_page(report), columns(sys.stdout)))
    return EXIT_FAILURE if report.is_broken or (options.strict and report.findings) else 0
