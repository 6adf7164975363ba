"""The seams of a host in one value: its routes, its systemd, its files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hostrouting.model.errors import ConfigError, RouteError

if TYPE_CHECKING:
    import os

    from hostrouting.boot.layout import Layout
    from hostrouting.boot.systemd import UnitManager
    from hostrouting.kernel.port import RouteBackend


@attrs.frozen(init=False)
class Host:
    """What the tasks work on. Without arguments: this very host.

    Args:
        routes: the routes backend; omitted: the kernel's, by netlink.
        units: the service manager; omitted: the running systemd, by systemctl.
        layout: where files are. Below another root ``routes`` and ``units`` must be given: files of an image
            beside routes of the running kernel are hardly ever meant.

    Raises:
        ConfigError: a layout of another root, and something omitted beside it.
    """

    backend: RouteBackend | None
    _units: UnitManager | None
    _layout: Layout | None

    def __init__(
        self,
        routes: RouteBackend | None = None,
        units: UnitManager | None = None,
        layout: Layout | None = None,
    ) -> None:
        if layout is not None and not layout.is_this_host:
            must = f"must be given beside a layout below {layout.root}"
            omitted = [("routes", f"{must}: NetlinkBackend() or a FakeKernel()")] if routes is None else []
            omitted += [("units", f"{must}: Systemctl() or FakeSystemd()")] if units is None else []
            if omitted:
                raise ConfigError(omitted)
        if routes is None:
            from hostrouting.kernel.netlink import NetlinkBackend

            routes = NetlinkBackend()
        self.__attrs_init__(backend=routes, units=units, layout=layout)

    @classmethod
    def image(cls, root: str | os.PathLike[str]) -> Host:
        """A host that isn't running: its files and which units start at boot, no routes and no check.

        Args:
            root: the folder where its file system is mounted.

        Returns:
            The host; what is installed into it holds from its first boot.

        Raises:
            ConfigError: there is no such folder, it holds no system, a link in it leads out of it, or it is this
                host's own root.
        """
        from hostrouting.boot.image import refuse_what_is_no_image
        from hostrouting.boot.layout import Layout
        from hostrouting.boot.systemctl import Systemctl

        layout = Layout(root)
        refuse_what_is_no_image(layout)
        image = cls.__new__(cls)
        image.__attrs_init__(backend=None, units=Systemctl(layout.root), layout=layout)
        return image

    # A check asks for neither, and paths cost as much to load as all of its questions.

    @property
    def units(self) -> UnitManager:
        """The service manager."""
        from hostrouting.boot.systemctl import Systemctl

        return Systemctl() if self._units is None else self._units

    @property
    def layout(self) -> Layout:
        """Where files are."""
        from hostrouting.boot.layout import Layout

        return Layout() if self._layout is None else self._layout

    @property
    def is_image(self) -> bool:
        """Whether there is no kernel to ask."""
        return self.backend is None

    @property
    def routes(self) -> RouteBackend:
        """The routes backend.

        Raises:
            RouteError: an image has none.
        """
        if self.backend is None:
            raise RouteError(f"the image {self.layout.root} has no kernel to ask")
        return self.backend
