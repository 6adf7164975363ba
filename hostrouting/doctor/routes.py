"""Are our routes there and do they win, and who may take them away?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostrouting.boot import files
from hostrouting.boot.examination import Fault, Severity, read_folder
from hostrouting.model.errors import RouteError
from hostrouting.routes.formats import as_networkd
from hostrouting.routes.plan import RoutePlan, plan_now
from hostrouting.routes.verify import verify_routes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.boot.examination import ExaminedHost
    from hostrouting.model.routes import Route

__all__ = ["cloud_init", "network_manager", "networkd", "routes"]

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
    if not _is_active(examined, "systemd-networkd.service"):
        return
    number = re.match(r"\d+", examined.units.show("", "Version")["Version"])
    version = int(number[0]) if number else 0
    for dev, text in _states(examined, "/run/systemd/netif/links").items():
        state = _settings(text)
        if state.get("ADMIN_STATE", "unmanaged") == "unmanaged" or _is_kept(examined, version, state):
            continue
        restart = "at its own restart, " if version >= _KEEPS_SINCE else ""
        message = (
            f"systemd-networkd {version} removes our routes by it {restart}when its .network file has changed and is "
            "reloaded, at networkctl reconfigure, and when the link goes down or loses its carrier"
        )
        yield Fault("networkd-flushes", dev, message, _networkd_remedy(examined, version, dev), Severity.RISK)


def _is_kept(examined: ExaminedHost, version: int, state: dict[str, str]) -> bool:
    """Whether networkd is told to leave foreign routes alone, and is one that obeys."""
    if version < _KEEPS_SINCE:
        return False
    layout, file = examined.layout, state.get("NETWORK_FILE", "")
    name = file.rpartition("/")[2]
    drop_ins = (f"{folder}/network/{name}.d" for folder in _CONFIG_FOLDERS)
    main = (files.read_text(layout.of(file)) or "") if file else ""
    network = _settings("\n".join([main, *_drop_ins(examined, *drop_ins)]))
    mains = (files.read_text(layout.of(f"{folder}/networkd.conf")) for folder in _CONFIG_FOLDERS)
    first = next((text for text in mains if text is not None), "")
    config = _settings("\n".join([first, *_drop_ins(examined, *(f"{f}/networkd.conf.d" for f in _CONFIG_FOLDERS))]))
    says_no = config.get("ManageForeignRoutes", "").lower() in ("no", "false", "off", "n", "f", "0")
    return says_no or network.get("KeepConfiguration", "").lower() in ("yes", "true", "on", "y", "t", "1")


def _drop_ins(examined: ExaminedHost, *folders: str) -> list[str]:
    """The texts of drop-ins in the order of their names; of one name the first folder's counts."""
    by_name: dict[str, str] = {}
    for folder in folders:
        for path, text in read_folder(examined.layout, f"{folder}/*.conf").items():
            by_name.setdefault(path.name, text)
    return [by_name[name] for name in sorted(by_name)]


def _settings(text: str) -> dict[str, str]:
    """The last word of each key."""
    pairs = (line.partition("=") for line in text.splitlines() if not line.lstrip().startswith(("#", ";")))
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


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
    sections = [line for line in text.splitlines() if line and not line.startswith("#")]
    rows = "\n".join(f"  {line}" for line in sections)
    return f"{_WATCHED}; or let networkd install them, by a drop-in of {dev}'s .network file:\n{rows}"


def network_manager(examined: ExaminedHost) -> Iterator[Fault]:
    """NetworkManager leaves our routes alone."""
    if not _is_active(examined, "NetworkManager.service"):
        return
    for dev, text in _states(examined, "/run/NetworkManager/devices").items():
        if _settings(text).get("managed", "false").lower() not in ("false", "0", "unmanaged"):
            # What its Reapply() is documented to do, unless it is called with preserve-external-ip.
            message = (
                "NetworkManager removes our routes by it when its connection is applied again (nmcli device reapply) "
                "or taken down"
            )
            rows = [
                f"nmcli connection modify CONNECTION +ipv4.routes '{_nm_words(route)}'" for route in _ours(examined)
            ]
            remedy = "\n".join([f"{_WATCHED}; or let NetworkManager install them:", *(f"  {row}" for row in rows)])
            yield Fault("network-manager-flushes", dev, message, remedy, Severity.RISK)


def _nm_words(route: Route) -> str:
    gateway = next((f" {hop.gateway}" for hop in route.hops if hop.gateway is not None), "")
    return f"{route.destination}{gateway}" + (f" {route.metric}" if gateway and route.metric else "")


def cloud_init(examined: ExaminedHost) -> Iterator[Fault]:
    """cloud-init doesn't configure the network anew while the node runs."""
    for path in sorted(examined.layout.of("/etc/udev/rules.d").glob("*cloud-init-hook-hotplug.rules")):
        if _ours(examined) and not path.is_symlink():
            yield Fault(
                "cloud-init-hotplug",
                examined.name(path),
                "cloud-init writes and applies the network's configuration anew when an interface appears or goes; our "
                "routes may go with the old one",
                f"{_WATCHED}; or take hotplug out of updates.network.when in cloud-init's config",
                Severity.RISK,
            )


def _is_active(examined: ExaminedHost, unit: str) -> bool:
    """Whether a service that might take routes away is running, and nobody would put them back."""
    return not examined.is_watched and examined.units.is_active(unit)


def _states(examined: ExaminedHost, folder: str) -> dict[str, str]:
    """What a network service has noted about the interfaces that our routes leave by, by their names."""
    devs = {dev for route in _ours(examined) for dev in route.devs}
    links = [link for link in examined.host.routes.links() if link.name in devs]
    texts = {link.name: files.read_text(examined.layout.of(f"{folder}/{link.index}")) for link in links}
    return {dev: text for dev, text in texts.items() if text is not None}


def _ours(examined: ExaminedHost) -> tuple[Route, ...]:
    """The wanted routes that are or would be ours, not somebody else's; none if that can't be told now."""
    try:
        plan, _ = plan_now(examined.config, examined.host.routes)
    except RouteError:  # ``routes`` tells of it
        plan = RoutePlan()
    return (*plan.add, *plan.unchanged, *(change.new for change in plan.replace))
