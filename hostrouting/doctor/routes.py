"""Are our routes there and do they win, who may take them away, and is there somebody who puts them back?"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from hostrouting.boot.examination import ExaminedHost, Fault, Severity
from hostrouting.boot.files import read_text
from hostrouting.boot.manifest import WATCH
from hostrouting.boot.unit_files import in_order, settings
from hostrouting.model.errors import RouteError
from hostrouting.routes.formats import as_networkd
from hostrouting.routes.plan import RoutePlan, plan_now
from hostrouting.routes.verify import verify_routes
from hostrouting.watch.managers import NETWORK_MANAGER, NETWORKD, noted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.model.routes import Route


# The oldest systemd whose ManageForeignRoutes=no and KeepConfiguration=yes were seen to keep routes; 252's don't.
_KEEPS_SINCE = 257

# In the order in which one overrides the next.
_CONFIG_FOLDERS = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")

_WATCHED = "hostrouting watch puts them back whenever they get lost"


def routes(examined: ExaminedHost) -> Iterator[Fault]:
    """Every route is in the kernel as asked, and wins."""
    try:
        plan, missing = plan_now(examined.config, examined.host.routes)
        if missing is not None:
            yield Fault("route-waits", "static routes", f"they wait for {missing}", "bring it up, or change CONFIG")
        for route in plan.add:
            yield Fault("route-missing", str(route), "it isn't in the kernel", examined.command("apply"))
        for change in plan.replace:
            yield Fault("route-differs", str(change.new), f"the kernel has: {change.old}", examined.command("apply"))
        verify_routes((*plan.unchanged, *plan.foreign), examined.host.routes)
    except RouteError as error:
        # Asked once more: what the kernel doesn't answer is no finding about routes.
        examined.host.routes.routes()
        remedy = f"look at: {examined.command('plan')}; ip -4 rule; ip -4 route show table all"
        yield Fault("route-fails", "static routes", str(error), remedy)


# --- who may take them away ----------------------------------------------------------------------------------------


def networkd(examined: ExaminedHost) -> Iterator[Fault]:
    """systemd-networkd leaves our routes alone."""
    managed = _managed(examined, NETWORKD)
    version = int(re.sub(r"\D.*", "", examined.units.show("", "Version")["Version"]) or 0) if managed else 0
    for dev, state in managed.items():
        if version >= _KEEPS_SINCE and _is_kept(examined, state):
            continue
        restart = "at its own restart, " if version >= _KEEPS_SINCE else ""
        message = (
            f"systemd-networkd {version} removes our routes by it {restart}when its .network file has changed and is "
            "reloaded, at networkctl reconfigure, and when the link goes down or loses its carrier"
        )
        yield Fault("networkd-flushes", dev, message, _networkd_remedy(examined, version, dev), Severity.RISK)


def _is_kept(examined: ExaminedHost, state: dict[str, str]) -> bool:
    """Whether networkd is told to leave foreign routes alone."""
    file = PurePosixPath(state.get("NETWORK_FILE", "")).name
    says_no = _settings_of(examined, "networkd.conf").get("ManageForeignRoutes", "").lower()
    says_yes = _settings_of(examined, f"network/{file}").get("KeepConfiguration", "").lower() if file else ""
    return says_no in ("no", "false", "off", "n", "f", "0") or says_yes in ("yes", "true", "on", "y", "t", "1")


def _settings_of(examined: ExaminedHost, name: str) -> dict[str, str]:
    """What a config file and its drop-ins set; of several of a name the first folder's counts."""
    files = [examined.layout.of(f"{folder}/{name}") for folder in _CONFIG_FOLDERS]
    first = [path for path in files if path.exists()][:1]
    later = in_order(examined.layout, [f"{folder}/{name}.d" for folder in _CONFIG_FOLDERS]).values()
    return dict(settings("\n".join(read_text(path) or "" for path in (*first, *later))))


def _networkd_remedy(examined: ExaminedHost, version: int, dev: str) -> str:
    if version >= _KEEPS_SINCE:
        return (
            "/etc/systemd/networkd.conf.d/hostrouting.conf:\n  [Network]\n  ManageForeignRoutes=no\n"
            f"then: systemctl restart systemd-networkd; a link that goes down still loses them: {_WATCHED}"
        )
    try:
        text = as_networkd([route for route in _ours(examined) if dev in route.devs])
    except RouteError:  # there are no words for one of them
        return _WATCHED
    rows = [f"  {line}" for line in text.splitlines() if line and not line.startswith("#")]
    return "\n".join([f"{_WATCHED}; or let networkd install them, by a drop-in of {dev}'s .network file:", *rows])


def network_manager(examined: ExaminedHost) -> Iterator[Fault]:
    """NetworkManager leaves our routes alone."""
    # What its Reapply() is documented to do, unless it is called with preserve-external-ip.
    message = (
        "NetworkManager removes our routes by it when its connection is applied again (nmcli device reapply) or taken "
        "down"
    )
    for dev in _managed(examined, NETWORK_MANAGER):
        rows = [f"  nmcli connection modify CONNECTION +ipv4.routes '{_nm_words(each)}'" for each in _ours(examined)]
        remedy = "\n".join([f"{_WATCHED}; or let NetworkManager install them:", *rows])
        yield Fault("network-manager-flushes", dev, message, remedy, Severity.RISK)


def _nm_words(route: Route) -> str:
    gateway = next((f" {hop.gateway}" for hop in route.hops if hop.gateway is not None), "")
    return f"{route.destination}{gateway}" + (f" {route.metric}" if gateway and route.metric else "")


def cloud_init(examined: ExaminedHost) -> Iterator[Fault]:
    """cloud-init doesn't configure the network anew while the node runs."""
    message = (
        "cloud-init writes and applies the network's configuration anew when an interface appears or goes; our routes "
        "may go with the old one"
    )
    remedy = f"{_WATCHED}; or take hotplug out of updates.network.when in cloud-init's config"
    for path in sorted(examined.layout.of("/etc/udev/rules.d").glob("*cloud-init-hook-hotplug.rules")):
        if _ours(examined) and not path.is_symlink():
            yield Fault("cloud-init-hotplug", examined.layout.relative(path), message, remedy, Severity.RISK)


def _managed(examined: ExaminedHost, manager: str) -> dict[str, dict[str, str]]:
    """What a network manager that runs has noted about the interfaces that our routes leave by.

    Nothing where the watcher puts back what it takes.
    """
    if examined.units.is_active(_WATCHER) or not examined.units.is_active(f"{manager}.service"):
        return {}
    devs = {dev for route in _ours(examined) for dev in route.devs}
    links = [link for link in examined.host.routes.links() if link.name in devs]
    states = {link.name: noted(examined.layout, manager, link.index) for link in links}
    return {dev: state for dev, state in states.items() if state}


def _ours(examined: ExaminedHost) -> tuple[Route, ...]:
    """The wanted routes that are or would be ours, not somebody else's; none if that can't be told now."""
    try:
        plan, _ = plan_now(examined.config, examined.host.routes)
    except RouteError:  # ``routes`` tells of it
        plan = RoutePlan()
    return (*plan.add, *plan.unchanged, *(change.new for change in plan.replace))


# --- who puts them back --------------------------------------------------------------------------------------------

_WATCHER = f"{WATCH}.service"

# One restart is an accident.
_RESTARTS_MAX = 2


def watcher(examined: ExaminedHost) -> Iterator[Fault]:
    """What keeps everything true after boot runs, and can write its metrics."""
    if WATCH not in examined.manifest.parts:
        return
    shown = examined.units.show(_WATCHER, "ActiveState", "SubState", "NRestarts")
    so, journal = "routes that get lost aren't put back, and the markers grow old", f"journalctl -u {WATCH}"
    if shown["SubState"] == "auto-restart" or int(shown["NRestarts"] or 0) > _RESTARTS_MAX:
        message = f"it fails again and again, {shown['NRestarts']} times so far: {so}"
        yield Fault("watcher-fails", _WATCHER, message, journal, Severity.RISK)
    elif shown["ActiveState"] != "active":
        yield Fault("watcher-down", _WATCHER, f"it is installed and doesn't run: {so}", journal, Severity.RISK)
    textfile = examined.manifest.config.watch.textfile
    if textfile is None:
        return
    folder, restart = textfile.rpartition("/")[0] or "/", f"systemctl restart {_WATCHER}"
    if not examined.layout.of(folder).is_dir():
        message = f"it isn't there, so the watcher can't write {textfile}"
        yield Fault("textfile", folder, message, f"mkdir -p {folder}; {restart}", Severity.RISK)
    elif shown["ActiveState"] == "active" and not examined.layout.of(textfile).exists():
        # Which folders a service may write to is settled as it starts.
        message = f"the watcher doesn't write it; was {folder} made after the watcher had started?"
        yield Fault("textfile", textfile, message, f"{restart}; {journal}", Severity.RISK)
