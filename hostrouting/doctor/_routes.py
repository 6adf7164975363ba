"""Check that our routes are in effect, and find programs that may remove or restore them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from hostrouting.boot.break_glass import why_open
from hostrouting.boot.layout import WATCH
from hostrouting.boot.trial_timer import TRIAL_HINT, is_overdue, trial_deadline
from hostrouting.doctor._files import changed_gate_files
from hostrouting.doctor.check_types import DoctorFinding, ExaminedHost, Severity
from hostrouting.host_files.advertisements import ignored_advertisements
from hostrouting.host_files.managers import (
    NETWORK_MANAGER,
    NETWORKD,
    is_managed,
    keeps_foreign_rules,
)
from hostrouting.kernel.default_routes import unicast_defaults
from hostrouting.kernel.port import read_default_routes
from hostrouting.model.errors import RouteError
from hostrouting.model.family import Family
from hostrouting.model.routes import Protocol, Route, how_to_delete
from hostrouting.model.rules import rule_words
from hostrouting.model.text import shortened
from hostrouting.overlap.planned_host import PlannedHost
from hostrouting.overlap.rehearsal import Rehearsal
from hostrouting.routes.formats import as_networkd
from hostrouting.routes.plan import RoutePlan, uplinks_of
from hostrouting.routes.policy import PolicyPlan

# A finding names at most this many routes.
_SHOWN_ROUTES = 4

_WATCHED = "hostrouting watch restores lost routes"
_INSTEAD = "and take them out of staticRoutes, because its routes don't follow a gateway that moves"


def trial(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that no trial of routes is in progress: during one, the kernel has other routes."""
    until = trial_deadline(examined.layout.trial)
    subject = "trial of routes"
    if is_overdue(examined.layout):
        message = "its time is over, and the timer that restores the installed routes is lost"
        yield DoctorFinding("trial-overdue", subject, message, "hostrouting revert")
    elif until is not None:
        message = (
            f"it is in progress until {until}: the kernel has the tried routes, "
            "not the installed ones"
        )
        yield DoctorFinding("trial-stands", subject, message, TRIAL_HINT, Severity.RISK)


def routes(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that the kernel has each installed route and rule, and that each is in effect."""
    rehearsal = examined.rehearsal
    plan = RoutePlan()
    with suppress(RouteError):  # the rehearsal has this error, too
        plan, _ = examined.route_plan
    for route in plan.add:
        yield DoctorFinding(
            "route-missing",
            str(route),
            "it isn't in the kernel",
            examined.repairing("apply"),
        )
    for change in plan.replace:
        message = f"the kernel has: {change.old}"
        yield DoctorFinding(
            "route-differs",
            str(change.new),
            message,
            examined.repairing("apply"),
        )
    for policy in plan.policies:
        yield from _policy_findings(policy, examined)
    yield from _left_routes(plan, examined)
    yield from _unkept(plan, examined)
    yield from _of_others(plan, examined)
    if rehearsal.error is not None:
        yield _why_held(rehearsal, rehearsal.error, examined)


def _why_held(rehearsal: Rehearsal, error: RouteError, examined: ExaminedHost) -> DoctorFinding:
    """Return a finding on why the next start's rehearsal fails."""
    then = _starts_without_routes(examined)
    hint = error.hint or f"look at: {examined.command('plan')}"
    if rehearsal.missing is not None:
        message = f"they wait for {rehearsal.missing}; {then}"
        return DoctorFinding("route-waits", "static routes", message, hint)
    return DoctorFinding("route-fails", "static routes", f"{error.message}; {then}", hint)


def _left_routes(plan: RoutePlan, examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Yield a finding for each of our routes that the installed config doesn't have."""
    wanted = _ours(examined)
    for route in chain(plan.remove, *(policy.remove for policy in plan.policies)):
        if route not in wanted:
            message = "it is ours, and the installed config doesn't have it: apply removes it"
            hint = examined.repairing("apply")
            yield DoctorFinding("route-left", str(route), message, hint, Severity.RISK)


def _of_others(plan: RoutePlan, examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Yield a finding if other programs' routes stand in for routes that follow the default's."""
    entries = examined.manifest.config.static_routes.routes
    following = {each.destination for each in entries if each.gateway is None}
    # The check ``verdict`` has a finding for what fix --format ip printed.
    standing = [
        route for route in plan.foreign if route.destination in following and not route.is_printed
    ]
    if not standing:
        return
    subject = shortened([str(route) for route in standing], ", ", _SHOWN_ROUTES)
    message = (
        "another program's, in place of ours, and doesn't follow a default route whose gateway "
        "moves: the gate would then hold each start"
    )
    commands = filter(None, map(how_to_delete, standing[:_SHOWN_ROUTES]))
    deleting = " && ".join((*commands, examined.repairing("apply")))
    hint = f"take it out of staticRoutes, or delete that one: {deleting}"
    yield DoctorFinding("route-of-another", subject, message, hint, Severity.RISK)


def _unkept(plan: RoutePlan, examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Yield a finding if the installed routes take InfiniBand's packets, and nothing keeps them."""
    if plan.changes:
        return
    planned = PlannedHost(examined.host, RoutePlan())
    found = planned.taken_by_ours(examined.manifest.config, examined.scope)
    if not found.keep:
        return
    devs = ", ".join(entry.dev for entry in found.keep)
    hint = f"{examined.command('fix --in-place')} && {examined.command('apply')}"
    message = "; ".join(found.kept)
    yield DoctorFinding("unkept", devs, message, hint, Severity.RISK)


def _starts_without_routes(examined: ExaminedHost) -> str:
    """Return a clause that says whether the gate admits starts while routes don't win."""
    if why := why_open(examined.layout):
        return f"starts are let through unchecked, because {why}"
    if changed_gate_files(examined):
        return (
            f"whether the gate then holds {examined.consumer} isn't known: its files have changed"
        )
    return f"until that is fixed, the gate holds each start of {examined.consumer}"


def _policy_findings(policy: PolicyPlan, examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Yield findings for missing rules and routes of side tables, and for unkept interfaces."""
    repairing = examined.repairing("apply")
    for route in policy.add:
        yield DoctorFinding("route-missing", str(route), "it isn't in the kernel", repairing)
    for change in policy.replace:
        message = f"the kernel has: {change.old}"
        yield DoctorFinding("route-differs", str(change.new), message, repairing)
    for rule in policy.rule_steps.add:
        message = "it isn't in the kernel, or comes after another one of ours"
        yield DoctorFinding("rule-missing", rule_words(rule), message, repairing)
    if not policy.wanted.pending:  # what waits has another finding
        yield from _left_rules(policy, examined)
    for item in policy.wanted.left_out:
        if item.is_there:  # a missing one may exist on another host with this config
            message = f"it isn't kept: {item.reason}"
            hint = "change that, or leave it out of hostRouting.staticRoutes.keep"
            yield DoctorFinding("not-kept", item.name, message, hint, Severity.RISK)
    if policy.wanted.pending and not examined.units.is_active(_WATCHER):
        message = f"not kept yet: {', '.join(policy.wanted.pending)}"
        hint = f"when it is ready: {repairing}; hostrouting watch does that by itself"
        yield DoctorFinding("not-kept-yet", "kept interfaces", message, hint, Severity.RISK)


def _left_rules(policy: PolicyPlan, examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Yield a finding for each of our rules that the installed config doesn't need."""
    steps = policy.rule_steps
    for rule in (*steps.remove_first, *steps.remove):
        if rule not in policy.wanted.rules:
            message = "it is ours, and the installed config doesn't need it: apply removes it"
            hint = examined.repairing("apply")
            yield DoctorFinding("rule-left", rule_words(rule), message, hint, Severity.RISK)


# --- programs that may remove our routes ----------------------------------------------------------


def networkd(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that systemd-networkd doesn't remove our routes and rules."""
    # The message says what an experiment has shown. Before systemd 257, no setting prevents these
    # removals.
    message = (
        "systemd-networkd removes our routes on it when the link goes down or loses its carrier; "
        "before systemd 257, or without ManageForeignRoutes=no in networkd.conf, also at "
        "networkctl reconfigure, when its .network file has changed and is reloaded, "
        "and (257) at its own restart"
    )
    main, side = _managed(examined, NETWORKD)
    for dev, routes in main.items():
        hint = _networkd_fix(dev, routes)
        yield DoctorFinding("networkd-flushes", dev, message, hint, Severity.RISK)
    if side:
        yield DoctorFinding("networkd-flushes", ", ".join(side), message, _WATCHED, Severity.RISK)
    static = examined.config.static_routes
    if not (static.rules or static.keep) or not _is_at_work(examined, NETWORKD):
        return
    if not keeps_foreign_rules(examined.layout.root):
        message = (
            "it removes our policy rules at networkctl reconfigure of any interface, when a file "
            "of its has changed and is reloaded, when an interface appears that it manages, and "
            "(systemd 257) at its own restart"
        )
        hint = (
            "hostrouting watch restores lost rules; or set ManageForeignRoutingPolicyRules=no "
            f"in networkd.conf, and: systemctl restart {NETWORKD}"
        )
        yield DoctorFinding("networkd-drops-rules", NETWORKD, message, hint, Severity.RISK)


def _networkd_fix(dev: str, routes: Sequence[Route]) -> str:
    try:
        text = as_networkd(routes)
    except RouteError:  # networkd can't express one of the routes
        return _WATCHED
    rows = [f"  {line}" for line in text.splitlines() if line and not line.startswith("#")]
    drop_in = f"with a drop-in for {dev}'s .network file"
    return "\n".join([f"{_WATCHED}; or let networkd install them, {drop_in}, {_INSTEAD}:", *rows])


def network_manager(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that NetworkManager doesn't remove our routes."""
    # See NetworkManager's documentation of Reapply(), which keeps our routes only with the flag
    # preserve-external-ip.
    message = (
        "NetworkManager removes our routes on it when its connection is applied again (nmcli "
        "device reapply) or taken "
        "down"
    )
    main, side = _managed(examined, NETWORK_MANAGER)
    for dev, routes in main.items():
        theirs = " ".join(
            f"+ipv{route.family.value}.routes '{route.destination} GATEWAY'" for route in routes
        )
        hint = (
            f"{_WATCHED}; or let NetworkManager install them, {_INSTEAD}: "
            f"nmcli connection modify CONNECTION {theirs}"
        )
        yield DoctorFinding("network-manager-flushes", dev, message, hint, Severity.RISK)
    if side:
        devs = ", ".join(side)
        yield DoctorFinding("network-manager-flushes", devs, message, _WATCHED, Severity.RISK)


def cloud_init(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that cloud-init doesn't reconfigure the network at runtime, without a watcher."""
    if examined.units.is_active(_WATCHER):
        return
    message = (
        "cloud-init writes and applies the network's configuration again when an interface "
        "appears or goes; our routes may go with the old one"
    )
    hint = f"{_WATCHED}; or take hotplug out of updates.network.when in cloud-init's config"
    rules = examined.layout.of("/etc/udev/rules.d")
    for path in sorted(rules.glob("*cloud-init-hook-hotplug.rules")):
        if _ours(examined) and not path.is_symlink():
            name = examined.layout.relative(path)
            yield DoctorFinding("cloud-init-hotplug", name, message, hint, Severity.RISK)


class _ManagedRoutes(NamedTuple):
    """Our routes through interfaces that a network manager controls, by interface.

    Args:
        main: the routes of table main.
        side: routes in side tables, for interfaces without routes in table main.
    """

    main: dict[str, list[Route]]
    side: dict[str, list[Route]]


def _managed(examined: ExaminedHost, manager: str) -> _ManagedRoutes:
    """Return our routes through interfaces that a network manager controls.

    A manager that doesn't run removes nothing, and a running watcher restores the routes. In both
    cases, the result is empty.
    """
    managed = _ManagedRoutes({}, {})
    if not _is_at_work(examined, manager):
        return managed
    ours = _ours(examined)
    for link in examined.host.routes.facts().links:
        on_it = [route for route in ours if link.name in route.devs]
        if not on_it or not is_managed(examined.layout.root, manager, link.index):
            continue
        in_main = [route for route in on_it if not route.is_in_side_table]
        if in_main:
            managed.main[link.name] = in_main
        else:
            managed.side[link.name] = on_it
    return managed


def _is_at_work(examined: ExaminedHost, manager: str) -> bool:
    """Return whether a network manager runs, and no watcher restores routes that it removes."""
    units = examined.units
    return units.is_active(f"{manager}.service") and not units.is_active(_WATCHER)


def _ours(examined: ExaminedHost) -> tuple[Route, ...]:
    """Return the wanted routes of all tables, without those that another program has installed.

    If the routes can't be planned, the result is empty.
    """
    try:
        plan, _ = examined.wanted_route_plan
    except RouteError:  # the doctor's check ``routes`` reports this error
        plan = RoutePlan()
    main = (*plan.add, *plan.unchanged, *(change.new for change in plan.replace))
    return (*main, *(route for policy in plan.policies for route in policy.wanted.routes))


# --- the program that restores our routes ---------------------------------------------------------

_WATCHER = f"{WATCH}.service"

# One or two restarts may be accidents.
_RESTARTS_MAX = 2


def watcher(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that the watcher runs and can write its metrics."""
    if WATCH not in examined.manifest.parts:
        return
    properties = examined.units.show(_WATCHER, "ActiveState", "SubState", "NRestarts")
    so = "lost routes aren't restored, and the markers become outdated"
    journal = f"journalctl -u {WATCH}"
    if (
        properties["SubState"] == "auto-restart"
        or int(properties["NRestarts"] or 0) > _RESTARTS_MAX
    ):
        message = f"it fails again and again, {properties['NRestarts']} times so far: {so}"
        yield DoctorFinding("watcher-fails", _WATCHER, message, journal, Severity.RISK)
    elif properties["ActiveState"] != "active":
        message = f"it is installed and doesn't run: {so}"
        hint = f"{examined.repairing('apply')} starts it again; why it ended: {journal}"
        yield DoctorFinding("watcher-down", _WATCHER, message, hint, Severity.RISK)
    textfile = examined.manifest.config.watch.textfile
    if textfile is not None:
        yield from _unwritten(examined, textfile, is_active=properties["ActiveState"] == "active")


def _unwritten(
    examined: ExaminedHost,
    textfile: str,
    *,
    is_active: bool,
) -> Iterator[DoctorFinding]:
    """Yield a finding if the watcher can't write its metrics."""
    folder = textfile.rpartition("/")[0] or "/"
    restart = f"systemctl restart {_WATCHER}"
    if not examined.layout.of(folder).is_dir():
        message = f"it isn't there, so the watcher can't write {textfile}"
        yield DoctorFinding(
            "textfile",
            folder,
            message,
            f"mkdir -p {folder}; {restart}",
            Severity.RISK,
        )
    elif is_active and not examined.layout.of(textfile).exists():
        # systemd applies ReadWritePaths= when the service starts. The watcher can't write to a
        # folder that is made later.
        message = f"the watcher doesn't write it; was {folder} made after the watcher had started?"
        hint = f"{restart}; journalctl -u {WATCH}"
        yield DoctorFinding("textfile", textfile, message, hint, Severity.RISK)


# --- IPv6 -----------------------------------------------------------------------------------------


def advertisements(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Find uplinks on which the kernel ignores router advertisements."""
    config = examined.host.with_verified(examined.config)
    if Family.IPV6 not in (*config.route_overlap.families, *config.static_routes.families):
        return
    routes6 = examined.host.routes_of(Family.IPV6)
    defaults = unicast_defaults(read_default_routes(routes6))
    links = examined.host.routes.facts().links
    patterns = uplinks_of(config, links, routes6, [examined.host.routes])
    if patterns is None and defaults:
        patterns = tuple(_devs_of(defaults))
    # Default routes that an administrator or a network manager has added don't expire.
    lasting = _devs_of(route for route in defaults if route.protocol != Protocol.RA)
    having = _devs_of(defaults)
    for each in ignored_advertisements(examined.layout, links, patterns):
        # With accept_ra=0, any default route is fine: an unknown program may have added it and may
        # renew it. On a host that forwards packets, a route from an advertisement expires.
        if each.dev not in (lasting if each.is_due_to_forwarding else having):
            message = (
                f"{each.reason}, so the kernel ignores its routers' advertisements: "
                "the IPv6 default route from them is gone, or will expire"
            )
            hint = f"{each.command}, and the same in a file in /etc/sysctl.d"
            yield DoctorFinding("accept-ra", each.dev, message, hint, Severity.RISK)


def _devs_of(routes: Iterable[Route]) -> dict[str, None]:
    """Return the routes' interfaces, in order and without duplicates, as the keys of a dict."""
    return dict.fromkeys(dev for route in routes for dev in route.devs)
