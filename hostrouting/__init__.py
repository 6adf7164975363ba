"""Phase tasks that give a node's traffic the right interface, and prove it.

    import phases
    from hostrouting import Config, Configure

    phases.run(Configure(Config.load("/etc/aks-flex-node/config.json")))

What is named here is the API, with ``hostrouting.azure`` (a plug-in) and ``hostrouting.testing``
(fakes). The rooms behind it, each importing only those above; docs/explanation/design.md shows them around:

    model             what a kernel holds, strict addresses, errors
    config            JSON -> typed values
    kernel            the routes port: netlink, in memory, a namespace, a recorded host
    boot, routes      what stays for the next boot; static routes: resolve -> plan -> install -> verify
    overlap, azure    the check: read -> judge -> fix; the plug-in
    tasks, watch      what a bootstrap program runs; what keeps it true afterwards
    doctor            does the gate hold on this host?
    cli               the command line
"""

from typing import TYPE_CHECKING

from hostrouting._lazy import lazily

try:
    from phases import CancelScope as _CancelScope  # noqa: F401
except ImportError as _error:
    if _error.name is None or _error.name.partition(".")[0] != "phases":
        raise  # what ours needs is missing
    raise ImportError(
        f"the package phases is not hostrouting's, but another distribution's ({_error}): "
        "pip uninstall phases, then pip install --force-reinstall hostrouting"
    ) from _error

__version__ = "0.1.0"

if TYPE_CHECKING:
    from hostrouting.boot.done import OverdueRun as OverdueRun
    from hostrouting.boot.done import StoppedRun as StoppedRun
    from hostrouting.boot.host import Host as Host
    from hostrouting.boot.layout import Layout as Layout
    from hostrouting.boot.render import render_check_route_overlap_script as render_check_route_overlap_script
    from hostrouting.boot.render import render_static_routes_script as render_static_routes_script
    from hostrouting.boot.systemctl import Systemctl as Systemctl
    from hostrouting.boot.systemd import UnitManager as UnitManager
    from hostrouting.config.overlap import ExpectedCidr as ExpectedCidr
    from hostrouting.config.overlap import OverlapMode as OverlapMode
    from hostrouting.config.overlap import RouteOverlap as RouteOverlap
    from hostrouting.config.routing import Config as Config
    from hostrouting.config.routing import StaticRoute as StaticRoute
    from hostrouting.config.routing import StaticRoutes as StaticRoutes
    from hostrouting.config.routing import Watch as Watch
    from hostrouting.kernel.netlink import NetlinkBackend as NetlinkBackend
    from hostrouting.kernel.port import RouteBackend as RouteBackend
    from hostrouting.kernel.port import WholeTables as WholeTables
    from hostrouting.model.changes import Change as Change
    from hostrouting.model.changes import Changes as Changes
    from hostrouting.model.errors import ConfigError as ConfigError
    from hostrouting.model.errors import FileError as FileError
    from hostrouting.model.errors import HostRoutingError as HostRoutingError
    from hostrouting.model.errors import RouteError as RouteError
    from hostrouting.model.errors import UnitError as UnitError
    from hostrouting.model.links import Address as Address
    from hostrouting.model.links import Family as Family
    from hostrouting.model.links import Hardware as Hardware
    from hostrouting.model.links import Link as Link
    from hostrouting.model.routes import DEFAULT_DESTINATION as DEFAULT_DESTINATION
    from hostrouting.model.routes import Lookup as Lookup
    from hostrouting.model.routes import NextHop as NextHop
    from hostrouting.model.routes import Protocol as Protocol
    from hostrouting.model.routes import Route as Route
    from hostrouting.model.routes import RouteFailure as RouteFailure
    from hostrouting.model.routes import RouteType as RouteType
    from hostrouting.model.routes import Scope as Scope
    from hostrouting.model.routes import Table as Table
    from hostrouting.model.rules import Rule as Rule
    from hostrouting.model.rules import RuleAction as RuleAction
    from hostrouting.overlap.findings import Finding as Finding
    from hostrouting.overlap.findings import FindingKind as FindingKind
    from hostrouting.overlap.findings import Note as Note
    from hostrouting.overlap.findings import NoteKind as NoteKind
    from hostrouting.overlap.findings import OverlapReport as OverlapReport
    from hostrouting.overlap.findings import Remedy as Remedy
    from hostrouting.overlap.findings import RouteOverlapError as RouteOverlapError
    from hostrouting.overlap.findings import Unmendable as Unmendable
    from hostrouting.overlap.findings import Verdict as Verdict
    from hostrouting.overlap.fleet import FleetReport as FleetReport
    from hostrouting.overlap.fleet import GroupFailure as GroupFailure
    from hostrouting.overlap.fleet import HostGroup as HostGroup
    from hostrouting.overlap.fleet import judge as judge
    from hostrouting.routes.plan import Replacement as Replacement
    from hostrouting.routes.plan import RoutePlan as RoutePlan
    from hostrouting.routes.plan import RoutesReport as RoutesReport
    from hostrouting.tasks.configure import CheckRouteOverlap as CheckRouteOverlap
    from hostrouting.tasks.configure import Configure as Configure
    from hostrouting.tasks.configure import ConfigureStaticRoutes as ConfigureStaticRoutes
    from hostrouting.tasks.configure import ConfigureWatch as ConfigureWatch
    from hostrouting.tasks.configure import RemoveHostRouting as RemoveHostRouting
    from hostrouting.tasks.install_routes import InstallRoutes as InstallRoutes
    from hostrouting.tasks.reports import ConfigureReport as ConfigureReport
    from hostrouting.tasks.reports import WatchReport as WatchReport
else:
    __all__, __getattr__, __dir__ = lazily(
        __name__,
        {
            "boot.done": "OverdueRun StoppedRun",
            "boot.host": "Host",
            "boot.layout": "Layout",
            "boot.render": "render_check_route_overlap_script render_static_routes_script",
            "boot.systemctl": "Systemctl",
            "boot.systemd": "UnitManager",
            "config.overlap": "ExpectedCidr OverlapMode RouteOverlap",
            "config.routing": "Config StaticRoute StaticRoutes Watch",
            "kernel.netlink": "NetlinkBackend",
            "kernel.port": "RouteBackend WholeTables",
            "model.changes": "Change Changes",
            "model.errors": "ConfigError FileError HostRoutingError RouteError UnitError",
            "model.links": "Address Family Hardware Link",
            "model.routes": "DEFAULT_DESTINATION Lookup NextHop Protocol Route RouteFailure RouteType Scope Table",
            "model.rules": "Rule RuleAction",
            "overlap.findings": "Finding FindingKind Note NoteKind "
            "OverlapReport Remedy RouteOverlapError Unmendable Verdict",
            "overlap.fleet": "FleetReport GroupFailure HostGroup judge",
            "routes.plan": "Replacement RoutePlan RoutesReport",
            "tasks.configure": "CheckRouteOverlap Configure ConfigureStaticRoutes ConfigureWatch RemoveHostRouting",
            "tasks.install_routes": "InstallRoutes",
            "tasks.reports": "ConfigureReport WatchReport",
        },
        "__version__",
    )
