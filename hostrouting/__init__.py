"""Phase tasks that route a node's traffic through the right interface, and checks of the result.

    import phases
    from hostrouting import Config, Configure, check

    config = Config.load("/etc/aks-flex-node/config.json")
    phases.run(Configure(config))    # on this host, now and at every boot
    print(check(config).verdict)

The config is read from the ``hostRouting`` key of a JSON document. A Config has StaticRoutes (lists
of StaticRoute, StaticRule and Keep), RouteOverlap (a list of ExpectedCidr, and an OverlapMode) and
Watch.

Tasks change the host and are run by ``phases.run``:

    Configure                 do the next three in a single step
    ConfigureStaticRoutes     install the routes atomically, now and at every boot
    ConfigureWatch            install the watcher, which repairs later changes
    CheckRouteOverlap         run the check, now and at every start of the node
    RemoveHostRouting         remove everything

Functions are read-only. Each one has a command of the same name, except for ``examine``, whose
command is doctor:

    check      check that every expected CIDR leaves through the node's uplinks
    plan       show what Configure would change, and whether the next start would be admitted
    explain    explain where traffic to an address goes
    diff       show which lookups differ between two snapshots of a host, and why
    snapshot   take a snapshot of a host's state
    judge      check many snapshots, and group the hosts by result
    examine    check that the gate works on this host, and find what may break it

Tasks and functions operate on a Host, which consists of routes, units and a file Layout; by default
on this host. Use ``Host.image`` for an image, and ``Host.recorded`` for a Snapshot. Functions also
take a ``scope``, whose cancellation ends their waits.

The results are ConfigureReport, RoutesReport, and OverlapReport with its Verdict.
``hostrouting.report`` exports all types used in these reports, and the functions' report types.

The errors are ConfigError, FileError, RouteError, UnitError and RouteOverlapError, all subclasses
of HostRoutingError.

``hostrouting.tasks`` has tasks that try routes for a limited time, or install nothing but routes,
and ``render``, which returns the files of an installation. ``hostrouting.backend`` has the ports to
implement for a custom backend, ``hostrouting.testing`` has test utilities, and
``hostrouting.azure`` supports Azure nodes. See docs/contributing/design.md for an overview of the
code.
"""

from hostrouting._lazy import lazily
from hostrouting.model.version import VERSION

__version__ = VERSION

# Type checkers know the name TYPE_CHECKING even without an import from typing. That import takes
# time, in which a Ctrl-C would print a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from hostrouting.boot.host import Host as Host
    from hostrouting.boot.layout import Layout as Layout
    from hostrouting.config.routing import Config as Config
    from hostrouting.config.routing import ExpectedCidr as ExpectedCidr
    from hostrouting.config.routing import Keep as Keep
    from hostrouting.config.routing import OverlapMode as OverlapMode
    from hostrouting.config.routing import RouteOverlap as RouteOverlap
    from hostrouting.config.routing import StaticRoute as StaticRoute
    from hostrouting.config.routing import StaticRoutes as StaticRoutes
    from hostrouting.config.routing import StaticRule as StaticRule
    from hostrouting.config.routing import Watch as Watch
    from hostrouting.doctor.examine import examine as examine
    from hostrouting.fleet.judge import judge as judge
    from hostrouting.kernel.snapshot import Snapshot as Snapshot
    from hostrouting.model.errors import ConfigError as ConfigError
    from hostrouting.model.errors import FileError as FileError
    from hostrouting.model.errors import HostRoutingError as HostRoutingError
    from hostrouting.model.errors import RouteError as RouteError
    from hostrouting.model.errors import UnitError as UnitError
    from hostrouting.overlap.findings import OverlapReport as OverlapReport
    from hostrouting.overlap.findings import RouteOverlapError as RouteOverlapError
    from hostrouting.overlap.findings import Verdict as Verdict
    from hostrouting.routes.plan import RoutesReport as RoutesReport
    from hostrouting.tasks.configure import CheckRouteOverlap as CheckRouteOverlap
    from hostrouting.tasks.configure import Configure as Configure
    from hostrouting.tasks.configure import ConfigureStaticRoutes as ConfigureStaticRoutes
    from hostrouting.tasks.configure import ConfigureWatch as ConfigureWatch
    from hostrouting.tasks.configure import RemoveHostRouting as RemoveHostRouting
    from hostrouting.tasks.preview import plan as plan
    from hostrouting.tasks.queries import check as check
    from hostrouting.tasks.queries import diff as diff
    from hostrouting.tasks.queries import explain as explain
    from hostrouting.tasks.queries import snapshot as snapshot
    from hostrouting.tasks.reports import ConfigureReport as ConfigureReport
else:
    __all__, __getattr__, __dir__ = lazily(
        __name__,
        {
            "boot.host": "Host",
            "boot.layout": "Layout",
            "config.routing": "Config ExpectedCidr Keep OverlapMode RouteOverlap "
            "StaticRoute StaticRoutes StaticRule Watch",
            "doctor.examine": "examine",
            "kernel.snapshot": "Snapshot",
            "model.errors": "ConfigError FileError HostRoutingError RouteError UnitError",
            "overlap.findings": "OverlapReport RouteOverlapError Verdict",
            "fleet.judge": "judge",
            "routes.plan": "RoutesReport",
            "tasks.configure": "CheckRouteOverlap Configure ConfigureStaticRoutes ConfigureWatch "
            "RemoveHostRouting",
            "tasks.preview": "plan",
            "tasks.queries": "check diff explain snapshot",
            "tasks.reports": "ConfigureReport",
        },
    )
