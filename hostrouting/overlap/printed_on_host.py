"""Find on a host what ``fix --format ip`` has added, and what CONFIG has installed beside it."""

from __future__ import annotations

import errno

from hostrouting.boot.host import Host
from hostrouting.config.routing import Config, StaticRoutes
from hostrouting.model.errors import RouteError
from hostrouting.routes.printed import Printed, read_printed


def printed_on(host: Host) -> tuple[Printed, ...]:
    """Return what ``fix --format ip`` has added, for each family, expected or not.

    Raises:
        RouteError: the host is an image, or a kernel can't be queried.
    """
    found = read_printed((host.routes,))
    has_no_ipv6 = host.snapshot is not None and host.snapshot.ipv6 is None
    backend6 = None if has_no_ipv6 else host.routes6
    if backend6 is None:
        return found
    try:
        return (*found, *read_printed((backend6,)))
    except RouteError as error:
        # A kernel without IPv6 (ipv6.disable=1) has no rules.
        if error.errno == errno.EAFNOSUPPORT:
            return found
        raise


def listed_on(host: Host, config: Config) -> StaticRoutes:
    """Return what the config lists and has installed.

    A snapshot doesn't include files. So what the config lists counts as installed there: the advice
    is the same if it isn't, to delete what was printed and to apply the config.
    """
    if host.snapshot is not None:
        return config.static_routes
    from hostrouting.boot.manifest import installed_routes

    return installed_routes(config, host.layout)
