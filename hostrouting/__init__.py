"""Phase tasks that give a node's traffic the right interface, and functions that prove it.

    import phases
    from hostrouting import Config, Configure, check

    config = Config.load("/etc/aks-flex-node/config.json")
    phases.run(Configure(config))    # on this host, now and at every boot
    print(check(config).verdict)

The config is the ``hostRouting`` key of a JSON document. Config consists of StaticRoutes (each a StaticRoute) and
RouteOverlap (each an ExpectedCidr, and an OverlapMode).

Tasks change things, and ``phases.run`` runs them:

    Configure                 all of the next three, in one step
    ConfigureStaticRoutes     the routes, all of them or none, and at every boot
    ConfigureWatch            the watcher, which keeps everything correct
    CheckRouteOverlap         the check, now and at every start of the node
    RemoveHostRouting         removes everything

Functions change nothing. Each has a command of the same name, except ``examine``, whose command is doctor:

    check      check that every expected CIDR leaves through the node's uplinks
    plan       show what Configure would change, and whether the next start would be admitted
    explain    explain where traffic to an address goes
    snapshot   record a host
    judge      check many snapshots, and group the hosts by what is wrong
    examine    check whether the gate holds on this host, and what may break it

Both work on a Host, which has routes, units and a Layout of files. ``Host.image`` makes one from an image, and
``Host.recorded`` from a Snapshot.

The results are ConfigureReport, RoutesReport, and OverlapReport with its Verdict. ``hostrouting.report`` has all parts
of these reports, and the reports of the functions.

The errors are ConfigError, FileError, RouteError, UnitError and RouteOverlapError, each of which is a HostRoutingError.

For authors of a routes backend, ``hostrouting.backend`` has the ports. ``hostrouting.testing`` is for tests, and
``hostrouting.azure`` for Azure's nodes. docs/explanation/design.md describes the code.
"""

from typing import TYPE_CHECKING

from hostrouting._lazy import lazily

try:
    from phases import CancelScope as _CancelScope  # noqa: F401
except ImportError as _error:
    if _error.name is None or _error.name.partition(".")[0] != "phases":
        raise  # a dependency of our own package is missing
    raise ImportError(
        f"the package phases is not hostrouting's, but another distribution's ({_error}): "
        "pip uninstall phases, then pip install --force-reinstall hostrouting"
    ) from _error

__version__ = "0.1.0"

if TYPE_CHECKING:
    from hostrouting.boot.host import Host as Host
    from hostrouting.boot.layout import Layout as Layout
    from hostrouting.config.routing import Config as Config
    from hostrouting.config.routing import ExpectedCidr as ExpectedCidr
    from hostrouting.config.routing import OverlapMode as OverlapMode
    from hostrouting.config.routing import RouteOverlap as RouteOverlap
    from hostrouting.config.routing import StaticRoute as StaticRoute
    from hostrouting.config.routing import StaticRoutes as StaticRoutes
    from hostrouting.doctor.examine import examine as examine
    from hostrouting.kernel.snapshot import Snapshot as Snapshot
    from hostrouting.model.errors import ConfigError as ConfigError
    from hostrouting.model.errors import FileError as FileError
    from hostrouting.model.errors import HostRoutingError as HostRoutingError
    from hostrouting.model.errors import RouteError as RouteError
    from hostrouting.model.errors import UnitError as UnitError
    from hostrouting.overlap.findings import OverlapReport as OverlapReport
    from hostrouting.overlap.findings import RouteOverlapError as RouteOverlapError
    from hostrouting.overlap.findings import Verdict as Verdict
    from hostrouting.overlap.fleet import judge as judge
    from hostrouting.routes.plan import RoutesReport as RoutesReport
    from hostrouting.tasks.configure import CheckRouteOverlap as CheckRouteOverlap
    from hostrouting.tasks.configure import Configure as Configure
    from hostrouting.tasks.configure import ConfigureStaticRoutes as ConfigureStaticRoutes
    from hostrouting.tasks.configure import ConfigureWatch as ConfigureWatch
    from hostrouting.tasks.configure import RemoveHostRouting as RemoveHostRouting
    from hostrouting.tasks.preview import plan as plan
    from hostrouting.tasks.queries import check as check
    from hostrouting.tasks.queries import explain as explain
    from hostrouting.tasks.queries import snapshot as snapshot
    from hostrouting.tasks.reports import ConfigureReport as ConfigureReport
else:
    __all__, __getattr__, __dir__ = lazily(
        __name__,
        {
            "boot.host": "Host",
            "boot.layout": "Layout",
            "config.routing": "Config ExpectedCidr OverlapMode RouteOverlap StaticRoute StaticRoutes",
            "doctor.examine": "examine",
            "kernel.snapshot": "Snapshot",
            "model.errors": "ConfigError FileError HostRoutingError RouteError UnitError",
            "overlap.findings": "OverlapReport RouteOverlapError Verdict",
            "overlap.fleet": "judge",
            "routes.plan": "RoutesReport",
            "tasks.configure": "CheckRouteOverlap Configure ConfigureStaticRoutes ConfigureWatch RemoveHostRouting",
            "tasks.preview": "plan",
            "tasks.queries": "check explain snapshot",
            "tasks.reports": "ConfigureReport",
        },
    )
