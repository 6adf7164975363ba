"""A minimal bootstrap agent: give the host its routes, prove them, and only then start the node.

Run it as root on a host:      python examples/bootstrap_agent.py /etc/aks-flex-node/config.json
Try it without touching one:   python examples/bootstrap_agent.py --try
"""

from __future__ import annotations

import logging
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address

import phases
from hostrouting import (
    DEFAULT_DESTINATION,
    Config,
    ConfigError,
    Configure,
    Host,
    HostRoutingError,
    Layout,
    NextHop,
    Protocol,
    Route,
)
from hostrouting.testing import FakeKernel, FakeSystemd


def bootstrap(config: Config, host: Host | None = None) -> int:
    """Configure a host; None is this one. Returns the exit code of the agent."""
    scope = phases.CancelScope()
    for number in (signal.SIGTERM, signal.SIGINT):
        # A cancelled run puts back what it had begun, then raises phases.Cancelled.
        signal.signal(number, lambda number, _frame: scope.cancel(signal.Signals(number).name))
    try:
        routes, overlap = phases.run(Configure(config, host=host), scope=scope)
    except HostRoutingError as error:
        print(f"not starting the node: {error}", file=sys.stderr)
        return 1
    except phases.Cancelled as error:
        print(f"stopped by {error.reason}; the host is as it was", file=sys.stderr)
        return 1
    print(f"{len(routes.added)} routes added, {len(routes.unchanged)} were there; verdict: {overlap.verdict}")
    for finding in overlap.findings:  # only in WARN mode: in STRICT they are an error
        print(f"warning: {finding.message}")
    print("starting the node")
    return 0


@contextmanager
def try_host() -> Iterator[tuple[Config, Host]]:
    """An H200 in memory, and a config for it."""
    kernel = FakeKernel()
    for dev, address in (("eth0", "10.1.0.4/24"), ("ib0", "172.16.0.10/16")):
        kernel.add_link(dev)
        kernel.add_address(dev, address)
    gateway = NextHop("eth0", IPv4Address("10.1.0.1"))
    kernel.add([Route(DEFAULT_DESTINATION, (gateway,), protocol=Protocol.DHCP)])
    config = Config.from_mapping(
        {
            "hostRouting": {
                "staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.1.0/24"}]},
                "routeOverlap": {"expectedCidrs": ["172.16.1.0/24"], "mode": "STRICT"},
            }
        }
    )
    with tempfile.TemporaryDirectory(prefix="bootstrap-agent-") as root:
        yield config, Host(routes=kernel, units=FakeSystemd(), layout=Layout(root))


def main(arguments: list[str]) -> int:
    """The agent's command line."""
    # The runner's records are wide: constant messages, the data in attributes of their own.
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s: %(path)s")
    if arguments == ["--try"]:
        with try_host() as (config, host):
            return bootstrap(config, host)
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 64
    try:
        config = Config.load(arguments[0])
    except ConfigError as error:
        for path, message in error.problems:
            print(f"{path}: {message}", file=sys.stderr)
        return 78
    return bootstrap(config)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
