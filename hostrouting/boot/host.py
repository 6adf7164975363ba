"""A host's routes, systemd and files in one value, and the validation of an image."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import attrs

from hostrouting.model.errors import ConfigError, FileError, RouteError

if TYPE_CHECKING:
    from pathlib import Path

    from hostrouting.boot.layout import Layout
    from hostrouting.boot.systemd import UnitManager
    from hostrouting.kernel.port import RouteBackend
    from hostrouting.kernel.snapshot import Snapshot
    from phases import CancelScope


@attrs.frozen(init=False)
class Host:
    """The host that the tasks work on; without arguments, this host.

    Args:
        routes: the routes backend; by default the kernel's, over netlink.
        units: the service manager; by default the running systemd, used through systemctl.
        layout: the paths of the files. If it has another root, ``routes`` and ``units`` must be given too, because an
            image's files are rarely meant to be combined with routes of the running kernel.

    Raises:
        ConfigError: the layout has another root, and another argument is missing.
    """

    backend: RouteBackend | None
    _units: UnitManager | None
    _layout: Layout | None
    snapshot: Snapshot | None = None

    def __init__(
        self,
        routes: RouteBackend | None = None,
        units: UnitManager | None = None,
        layout: Layout | None = None,
    ) -> None:
        if layout is not None and not layout.is_this_host:
            must = f"must be given with a layout below {layout.root}"
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
        """Return a host that isn't running: it has only files and the list of units that start at boot.

        It has no routes, so it can't be checked.

        Args:
            root: the folder where its file system is mounted.

        Returns:
            The host. What is installed into it takes effect at its first boot.

        Raises:
            ConfigError: the folder doesn't exist, has no system in it, has a link that leads out of it, or is this
                host's own root.
        """
        from hostrouting.boot.layout import Layout
        from hostrouting.boot.systemctl import Systemctl

        layout = Layout(root)
        _refuse_what_is_no_image(layout)
        image = cls.__new__(cls)
        image.__attrs_init__(backend=None, units=Systemctl(layout.root), layout=layout)
        return image

    @classmethod
    def recorded(cls, snapshot: Snapshot) -> Host:
        """Return a host made from a snapshot, whose routes can be queried but not changed.

        Args:
            snapshot: the host's links, addresses, rules and routes. It says nothing about files and units.

        Returns:
            The host, for use with ``check``, ``plan`` and ``explain``; its ``snapshot`` is the given one.
        """
        from hostrouting.kernel.snapshot_backend import SnapshotBackend

        recorded = cls.__new__(cls)
        recorded.__attrs_init__(backend=SnapshotBackend(snapshot), units=None, layout=None, snapshot=snapshot)
        return recorded

    @property
    def name(self) -> str:
        """The host's name: the name in its snapshot, the folder of an image, or this machine's name."""
        if self.is_image:
            return str(self.layout.root)
        return os.uname().nodename if self.snapshot is None else self.snapshot.host or "a recorded host"

    # A check needs neither units nor layout, and importing the paths takes as long as all of its queries.

    @property
    def units(self) -> UnitManager:
        """The service manager.

        Raises:
            FileError: the host is a snapshot, which has no units.
        """
        self._refuse_recorded("units")
        from hostrouting.boot.systemctl import running_systemd

        return running_systemd() if self._units is None else self._units

    def within(self, scope: CancelScope) -> Host:
        """Return this host with a systemd that stops waiting for answers once the scope is cancelled."""
        # An image's systemd can't hang.
        return self if self.is_image else Host(self.backend, self.units.within(scope), self._layout)

    @property
    def layout(self) -> Layout:
        """The paths of the host's files.

        Raises:
            FileError: the host is a snapshot, which has no files.
        """
        self._refuse_recorded("files")
        from hostrouting.boot.layout import Layout

        return Layout() if self._layout is None else self._layout

    def _refuse_recorded(self, what: str) -> None:
        # Falling back to this machine's files would never be right.
        if self.snapshot is not None:
            raise FileError(f"the snapshot of {self.name} holds no {what}", hint="do it on the host itself")

    @property
    def is_image(self) -> bool:
        """Return whether the host is an image, which has no kernel to query."""
        return self.backend is None

    @property
    def routes(self) -> RouteBackend:
        """The routes backend.

        Raises:
            RouteError: the host is an image, which has no routes.
        """
        if self.backend is None:
            raise RouteError(f"the image {self.layout.root} has no kernel to ask")
        return self.backend


# --- images --------------------------------------------------------------------------------------------------------

# The folders of systemd's own units. An image that isn't mounted, or only in part, has neither.
_SYSTEM = ("usr/lib/systemd/system", "lib/systemd/system")


def _refuse_what_is_no_image(layout: Layout) -> None:
    """Refuse a folder that isn't an image, or in which one of our files would end up somewhere else.

    Raises:
        ConfigError: the folder is this host's own root, doesn't exist or has no system; or a link leads out of it.
    """
    from hostrouting.boot.files import matching
    from hostrouting.boot.manifest import CHECK, ROUTES, WATCH
    from hostrouting.boot.unit_files import UNIT_PATH

    root = layout.root
    if not root.is_dir():
        raise ConfigError([("root", f"there is no folder {root}; is the image mounted?")])
    # This also finds bind mounts of the root or of the folders to write to.
    written = (layout.units, layout.config.parent, layout.manifest.parent, layout.protocol_names.parent, layout.run_dir)
    for path in (root, *written):
        own = layout.relative(path)
        if os.path.exists(own) and path.exists() and path.samefile(own):  # noqa: PTH110
            raise ConfigError([("root", f"{path} is this host's own; leave the root out to work on this host")])
    # All folders in which files are read or written, and the files that aren't units.
    touched = [*map(layout.of, UNIT_PATH), layout.protocol_names, layout.run_dir]
    for folder in (layout.config.parent, layout.manifest.parent):
        touched += [folder, *matching(folder, "*")]
    for kind in ("d", "wants", "requires"):
        touched += matching(layout.units, f"*.{kind}")
    # Also our units and drop-ins, except masked ones.
    read = [layout.unit(part) for part in (ROUTES, CHECK, WATCH)]
    for folder in matching(layout.units, "*.service.d"):
        read += matching(folder, "*hostrouting*.conf")
    touched += [path for path in read if not path.is_symlink() or str(path.readlink()) != os.devnull]
    for path in touched:
        _refuse_links(layout, path)
    if not any((root / name).is_dir() for name in _SYSTEM):
        raise ConfigError([("root", f"{root} has no system: it lacks {_SYSTEM[0]}; is the image mounted?")])


def _refuse_links(layout: Layout, path: Path) -> None:
    root = layout.root
    for link in (*reversed(path.parents), path):
        # The root itself may be a link.
        if root not in link.parents or not link.is_symlink():
            continue
        target = link.readlink()
        # An absolute link is right when the image runs, but now it points into this host.
        if target.is_absolute() or not link.resolve().is_relative_to(root.resolve()):
            fix = "make it a relative link inside the image, or run apply in a chroot of it"
            raise ConfigError([("root", f"{link} is a link to {target}, which leads out of the image: {fix}")])
