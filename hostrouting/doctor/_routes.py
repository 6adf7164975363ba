"""Check that our routes exist and win, and find programs that may remove or restore them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from hostrouting.boot.manifest import WATCH
from hostrouting.boot.trial import is_overdue, standing
from hostrouting.doctor.checks import DoctorFinding, ExaminedHost, Severity
from hostrouting.kernel.managers import NETWORK_MANAGER, NETWORKD, is_managed
from hostrouting.model.errors import RouteError
from hostrouting.model.routes import Route
from hostrouting.overlap.one_event import anticipate
from hostrouting.routes.formats import as_networkd
from hostrouting.routes.plan import RoutePlan, plan_now
from hostrouting.routes.verify import verify_routes
from hostrouting.tasks.queries import snapshot

_WATCHED = "hostrouting watch puts them back whenever they get lost"


def trial(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that no trial of routes is in progress, because the kernel's routes then differ from the installed ones."""
    until, subject = standing(examined.layout.trial), "trial of routes"
    if is_overdue(examined.layout):
        message = "its time is over, and the timer that restores the former routes is lost"
        yield DoctorFinding("trial-overdue", subject, message, examined.command("apply"))
    elif until is not None:
        message = f"it stands until {until}: the kernel has the tried routes, not the installed ones"
        hint = "hostrouting confirm keeps them; hostrouting remove, or apply, ends it"
        yield DoctorFinding("trial-stands", subject, message, hint, Severity.RISK)


def routes(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that every route is in the kernel as configured, and wins."""
    try:
        plan, missing = plan_now(examined.config, examined.host.routes)
        if missing is not None:
            yield DoctorFinding(
                "route-waits", "static routes", f"they wait for {missing}", "bring it up, or change CONFIG"
            )
        for route in plan.add:
            yield DoctorFinding("route-missing", str(route), "it isn't in the kernel", examined.command("apply"))
        for change in plan.replace:
            yield DoctorFinding(
                "route-differs", str(change.new), f"the kernel has: {change.old}", examined.command("apply")
            )
        verify_routes((*plan.unchanged, *plan.foreign), examined.host.routes)
    except RouteError as error:
        # Query the kernel again, because a failed query isn't a finding about routes.
        examined.host.routes.routes()
        hint = f"look at: {examined.command('plan')}; ip -4 rule; ip -4 route show table all"
        yield DoctorFinding("route-fails", "static routes", str(error), hint)


# --- programs that may remove them ---------------------------------------------------------------------------------


def networkd(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that systemd-networkd doesn't remove our routes."""
    # This was measured; before version 257, systemd-networkd does it with any settings.
    message = (
        "systemd-networkd removes our routes on it when the link goes down or loses its carrier; before systemd 257, "
        "or without ManageForeignRoutes=no in networkd.conf, also at networkctl reconfigure, when its .network file "
        "has changed and is reloaded, and (257) at its own restart"
    )
    for dev, routes in _managed(examined, NETWORKD).items():
        yield DoctorFinding("networkd-flushes", dev, message, _networkd_fix(dev, routes), Severity.RISK)


def _networkd_fix(dev: str, routes: Sequence[Route]) -> str:
    try:
        text = as_networkd(routes)
    except RouteError:  # networkd can't express one of the routes
        return _WATCHED
    rows = [f"  {line}" for line in text.splitlines() if line and not line.startswith("#")]
    return "\n".join([f"{_WATCHED}; or let networkd install them, with a drop-in for {dev}'s .network file:", *rows])


def network_manager(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that NetworkManager doesn't remove our routes."""
    # This is the documented effect of its Reapply(), unless it is called with preserve-external-ip.
    message = (
        "NetworkManager removes our routes on it when its connection is applied again (nmcli device reapply) or taken "
        "down"
    )
    for dev, routes in _managed(examined, NETWORK_MANAGER).items():
        theirs = " ".join(f"+ipv4.routes '{route.destination} GATEWAY'" for route in routes)
        hint = f"{_WATCHED}; or let NetworkManager install them: nmcli connection modify CONNECTION {theirs}"
        yield DoctorFinding("network-manager-flushes", dev, message, hint, Severity.RISK)


def cloud_init(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that cloud-init doesn't configure the network again while the node runs."""
    message = (
        "cloud-init writes and applies the network's configuration again when an interface appears or goes; our routes "
        "may go with the old one"
    )
    hint = f"{_WATCHED}; or take hotplug out of updates.network.when in cloud-init's config"
    for path in sorted(examined.layout.of("/etc/udev/rules.d").glob("*cloud-init-hook-hotplug.rules")):
        if _ours(examined) and not path.is_symlink():
            yield DoctorFinding("cloud-init-hotplug", examined.layout.relative(path), message, hint, Severity.RISK)


def events(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that no single event leads an expected CIDR elsewhere permanently."""
    config = examined.manifest.config
    if not config.route_overlap.expected_cidrs or standing(examined.layout.trial) is not None:
        return
    config = attrs.evolve(config, watch=attrs.evolve(config.watch, enabled=examined.units.is_active(_WATCHER)))
    found: dict[tuple[str, str], list[str]] = {}
    for each in anticipate(config, snapshot(host=examined.host), examined.scope):
        if each.is_risk:
            failure = each.lasting_findings[0].failure
            found.setdefault((each.event.subject, failure), []).append(str(each.event.kind))
    for (subject, failure), kinds in found.items():
        hint = f"{examined.command('check')} --one-event says more; watch.enabled in CONFIG puts our routes back"
        yield DoctorFinding(
            "one-event", subject, f"one event away ({', '.join(kinds)}): {failure}", hint, Severity.RISK
        )


def _managed(examined: ExaminedHost, manager: str) -> dict[str, list[Route]]:
    """Return our routes on the interfaces of a network manager, grouped by interface.

    There are none if the manager isn't running, or if the watcher would restore them.
    """
    if examined.units.is_active(_WATCHER) or not examined.units.is_active(f"{manager}.service"):
        return {}
    ours = _ours(examined)
    links = [link for link in examined.host.routes.links() if is_managed(examined.layout.root, manager, link.index)]
    routes = {link.name: [route for route in ours if link.name in route.devs] for link in links}
    return {dev: taken for dev, taken in routes.items() if taken}


def _ours(examined: ExaminedHost) -> tuple[Route, ...]:
    """Return the wanted routes that are or would be ours, not another program's.

    There are none if the routes can't be planned at this moment.
    """
    try:
        plan, _ = plan_now(examined.config, examined.host.routes)
    except RouteError:  # ``routes`` reports this
        plan = RoutePlan()
    return (*plan.add, *plan.unchanged, *(change.new for change in plan.replace))


# --- the program that restores them --------------------------------------------------------------------------------

_WATCHER = f"{WATCH}.service"

# One or two restarts may be an accident.
_RESTARTS_MAX = 2


def watcher(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that the watcher runs and can write its metrics."""
    if WATCH not in examined.manifest.parts:
        return
    shown = examined.units.show(_WATCHER, "ActiveState", "SubState", "NRestarts")
    so, journal = "lost routes aren't restored, and the markers become outdated", f"journalctl -u {WATCH}"
    if shown["SubState"] == "auto-restart" or int(shown["NRestarts"] or 0) > _RESTARTS_MAX:
        message = f"it fails again and again, {shown['NRestarts']} times so far: {so}"
        yield DoctorFinding("watcher-fails", _WATCHER, message, journal, Severity.RISK)
    elif shown["ActiveState"] != "active":
        yield DoctorFinding("watcher-down", _WATCHER, f"it is installed and doesn't run: {so}", journal, Severity.RISK)
    textfile = examined.manifest.config.watch.textfile
    if textfile is None:
        return
    folder, restart = textfile.rpartition("/")[0] or "/", f"systemctl restart {_WATCHER}"
    if not examined.layout.of(folder).is_dir():
        message = f"it isn't there, so the watcher can't write {textfile}"
        yield DoctorFinding("textfile", folder, message, f"mkdir -p {folder}; {restart}", Severity.RISK)
    elif shown["ActiveState"] == "active" and not examined.layout.of(textfile).exists():
        # The folders that a service may write to are determined when it starts.
        message = f"the watcher doesn't write it; was {folder} made after the watcher had started?"
        yield DoctorFinding("textfile", textfile, message, f"{restart}; {journal}", Severity.RISK)
