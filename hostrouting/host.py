"""The seams of a host in one value: its routes, its systemd, its files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.errors import ConfigError
from hostrouting.layout import Layout

if TYPE_CHECKING:
    from hostrouting.backends import RouteBackend
    from hostrouting.systemd import UnitManager

__all__ = ["Host"]


@attrs.frozen(init=False)
class Host:
    """What the tasks work on. Without arguments: this very host.

    Args:
        routes: the routes backend; omitted: the kernel's, by netlink.
        units: the service manager. Nothing is installed into systemd yet; omitted, there is none.
        layout: where files are. Below another root ``routes`` and ``units`` must be given: files of an image
            beside routes of the running kernel are hardly ever meant.

    Raises:
        ConfigError: a layout of another root, and something omitted beside it.
    """

    routes: RouteBackend
    units: UnitManager | None
    layout: Layout

    def __init__(
        self,
        routes: RouteBackend | None = None,
        units: UnitManager | None = None,
        layout: Layout | None = None,
    ) -> None:
        layout = layout or Layout()
        if not layout.is_this_host:
            omitted = [name for name, seam in (("routes", routes), ("units", units)) if seam is None]
            if omitted:
                raise ConfigError([(name, f"must be given beside a layout below {layout.root}") for name in omitted])
        if routes is None:
            from hostrouting.backends.netlink import NetlinkBackend

            routes = NetlinkBackend()
        self.__attrs_init__(routes=routes, units=units, layout=layout)
