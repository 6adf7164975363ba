"""The host that tasks operate on: its routes, its service manager and its files."""

from __future__ import annotations

import errno
import os
from functools import cache, partial
from shlex import quote
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.boot.systemd import UnitManager, innermost_units, translated_units
from hostrouting.config.routing import Config, FormerUplinkRecord, UplinkRecord
from hostrouting.kernel.arguments import check_backend, check_methods
from hostrouting.kernel.port import RouteBackend, read_our_routes
from hostrouting.kernel.translating import innermost, translated
from hostrouting.model.errors import ConfigError, FileError, RouteError
from hostrouting.model.family import Family
from hostrouting.model.jsonable import rfc_3339
from hostrouting.model.opening import only_regular
from hostrouting.model.text import shown
from hostrouting.model.values import frozen
from hostrouting.model.verified_uplinks import VERIFIED_PATH, VerifiedUplink, parse_verified

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from hostrouting.boot.layout import Layout
    from hostrouting.kernel.snapshot import Snapshot
    from hostrouting.model.routes import Route
    from phases import CancelScope

_RECORD_BYTES = 1 << 20


@frozen(init=False, repr=False)
class Host:
    """The host that tasks operate on; without arguments, the local host.

    A test must not change this machine. So if one argument replaces a part of this machine, all of
    ``routes``, ``units`` and ``layout`` are needed. These arguments replace a part: a layout below
    another root, a ``FakeKernel``, a ``NamespaceKernel`` or a ``FakeSystemd``.

    Args:
        routes: the routes backend; defaults to the kernel via netlink.
        units: the service manager; defaults to the running systemd via systemctl.
        layout: the file layout; defaults to this machine's files.
        routes6: the IPv6 routes backend, without which IPv6 CIDRs can't be checked. If ``routes``
            isn't given, ``routes6`` defaults to the kernel via netlink.

    Raises:
        ConfigError: a part of the host would be this machine: an argument is missing, or the real
            ``units``, ``layout`` or ``routes6`` is given with a ``FakeKernel``.
        TypeError: an argument has the wrong type, or lacks a method.
    """

    backend: RouteBackend | None
    _units: UnitManager | None
    _layout: Layout | None
    snapshot: Snapshot | None = None
    _backend6: Callable[[], RouteBackend] | None = None

    def __init__(
        self,
        routes: RouteBackend | None = None,
        units: UnitManager | None = None,
        layout: Layout | None = None,
        routes6: RouteBackend | None = None,
    ) -> None:
        _check_backend(routes, Family.IPV4)
        _check_backend(routes6, Family.IPV6)
        if units is not None:
            check_methods(units, UnitManager, "Host(units=…)")
        if layout is not None:
            _require_layout(layout)
        _refuse_a_part(routes, units, layout)
        if routes is not None and routes6 is not None:
            _refuse_a_mix(routes, routes6)
        backend6: Callable[[], RouteBackend] | None = None
        if routes6 is not None:
            backend6 = partial(_given, translated(routes6))
        if routes is None:
            from hostrouting.kernel.netlink import NetlinkBackend

            routes = NetlinkBackend()
            backend6 = backend6 or _kernel6
        self.__attrs_init__(
            backend=translated(routes),
            units=None if units is None else translated_units(units),
            layout=layout,
            backend6=backend6,
        )

    @classmethod
    def image(cls, root: str | os.PathLike[str]) -> Host:
        """Return a host for a mounted image, which has only files and enabled units.

        The host has no routes: the verdict of ``check`` is ``unknown``, and ``explain`` and
        ``snapshot`` raise a RouteError.

        Args:
            root: the image's mount point.

        Returns:
            The host; anything installed on it takes effect when the image is first booted.

        Raises:
            ConfigError: the folder doesn't exist, doesn't contain an OS, contains a symlink that
                escapes it, or is this host's own root. Tasks and functions check this again.
        """
        from hostrouting.boot.images import image_layout
        from hostrouting.boot.systemctl import Systemctl

        layout = image_layout(root)
        return cls._of(
            backend=None,
            units=Systemctl(layout.root),
            layout=layout,
        )

    @classmethod
    def recorded(cls, snapshot: Snapshot) -> Host:
        """Return a read-only host that is backed by a snapshot.

        Args:
            snapshot: a snapshot of a host's links, addresses, rules and routes, without files and
                units.

        Returns:
            The host, for use with ``check``, ``plan`` and ``explain``.
        """
        from hostrouting.kernel.model import model_of

        check_snapshot(snapshot, "Host.recorded")
        return cls._of(
            backend=model_of(snapshot.known(Family.IPV4)),
            units=None,
            layout=None,
            snapshot=snapshot,
            backend6=partial(_recorded6, snapshot),
        )

    @classmethod
    def _of(cls, **fields: Any) -> Host:
        made = cls.__new__(cls)
        made.__attrs_init__(**fields)
        return made

    def __repr__(self) -> str:
        if self.snapshot is not None:
            return f"Host.recorded(<the snapshot of {self.name}>)"
        if self.is_image:
            return f"Host.image({str(self.layout.root)!r})"
        given = {
            "routes": self.backend,
            "units": self._units,
            "layout": self._layout,
            "routes6": self.routes6,
        }
        words = [f"{name}={value!r}" for name, value in given.items() if value is not None]
        return f"Host({', '.join(words)})"

    @property
    def name(self) -> str:
        """Return this machine's hostname, the name in the snapshot, or an image's root folder."""
        if self.is_image:
            return str(self.layout.root)
        if self.snapshot is None:
            return os.uname().nodename
        return self.snapshot.host or "an unnamed snapshot"

    @property
    def has_another_network(self) -> bool:
        """Return whether this process shares PID 1's files but not its network namespace.

        If that isn't known, the result is False.
        """
        if self.snapshot is not None or not (self._layout is None or self._layout.is_this_host):
            return False
        same = os.path.samefile  # not pathlib's, which a check doesn't import
        try:
            # Without ptrace access to PID 1, as in the watcher's unit, stat(2) fails here.
            has_same_files = same("/proc/1/root/run", "/run")
            return has_same_files and not same("/proc/1/ns/net", "/proc/thread-self/ns/net")
        except OSError:
            return False

    def refuse_another_network(self, attempt: str) -> None:
        """Raise a FileError if this process has the host's files, but another network namespace.

        Args:
            attempt: the beginning of the message, such as ``can't leave markers in
                /run/aks-flex-node``.
        """
        if self.has_another_network:
            raise FileError(
                f"{attempt}: it is the host's, and this is another network namespace",
                hint="to enter the host's: nsenter --target 1 --net",
            )

    # The properties below import systemctl and layout only on use. A check needs neither module,
    # and importing layout takes as long as all of a check's queries.

    @property
    def units(self) -> UnitManager:
        """Return the service manager.

        Raises:
            FileError: the host is a snapshot and so has no units.
        """
        self._refuse_recorded("units")
        from hostrouting.boot.systemctl import running_systemd

        return running_systemd() if self._units is None else self._units

    def refuse_unsuitable_image(self) -> None:
        """Raise an error if the host is an image that ``Host.image`` would refuse by now.

        Since then, the image may have been unmounted, or a link in it may have been made.

        Raises:
            ConfigError, FileError: as for ``Host.image``.
        """
        if not self.is_image:
            return
        from hostrouting.boot.images import image_layout

        image_layout(self.layout.root)

    def within(self, scope: CancelScope) -> Host:
        """Return a copy whose systemd calls stop waiting once the scope is cancelled."""
        units = self.units.within(scope)
        return self._of(
            backend=self.backend,
            units=units,
            layout=self._layout,
            backend6=self._backend6,
        )

    @property
    def layout(self) -> Layout:
        """Return the paths of the host's files.

        Raises:
            FileError: the host is a snapshot and so has no files.
        """
        self._refuse_recorded("files")
        from hostrouting.boot.layout import Layout

        return Layout() if self._layout is None else self._layout

    def _refuse_recorded(self, what: str) -> None:
        # Never fall back to this machine's files.
        if self.snapshot is not None:
            raise FileError(
                f"the snapshot of {self.name} holds no {what}",
                hint="do it on the host itself",
            )

    @property
    def is_image(self) -> bool:
        """Return whether the host is an image, which has no running kernel."""
        return self.backend is None

    @property
    def routes(self) -> RouteBackend:
        """Return the routes backend.

        Raises:
            RouteError: the host is an image and so has no routes.
        """
        if self.backend is None:
            raise RouteError(f"the image {self.layout.root} has no kernel to ask")
        return self.backend

    @property
    def routes6(self) -> RouteBackend | None:
        """Return the IPv6 routes backend; None if the host has none.

        Raises:
            RouteError: the host is a snapshot without IPv6.
        """
        return None if self._backend6 is None else self._backend6()

    @property
    def verified(self) -> tuple[VerifiedUplink, ...]:
        """Return the uplinks with which the check has passed on this host.

        Raises:
            FileError: the record of verified uplinks can't be read. If an unreadable record counted
                as missing, the next default route would determine the uplink.
        """
        if self.snapshot is not None:
            return self.snapshot.verified
        return _read_verified(self._record)

    @property
    def has_record(self) -> bool:
        """Return whether there is a record of verified uplinks, even if it can't be read."""
        if self.snapshot is not None:
            return bool(self.snapshot.verified)
        return os.path.lexists(self._record)

    @property
    def expects_verified(self) -> bool:
        """Return whether a check is installed, which expects the verified uplinks."""
        if self.snapshot is not None:
            return self.snapshot.expects_verified
        from hostrouting.boot.layout import CHECK
        from hostrouting.boot.manifest import Manifest

        try:
            return CHECK in Manifest.of_host(self.layout).parts
        except FileError:  # a broken manifest
            return True

    @property
    def _record(self) -> str:
        # Import the layout only for another root, because a check doesn't need the module
        # otherwise.
        return f"/{VERIFIED_PATH}" if self._layout is None else str(self._layout.verified)

    def with_verified(self, config: Config) -> Config:
        """Return a config with this host's verified uplinks; unchanged if it doesn't need them.

        Two kinds of configs need them, in either mode: a config with a CIDR, and a config that
        ``is_as_installed`` if a check is installed. A config from ``installed_config`` keeps the
        uplinks that it came with, until the config is changed. An image has none.

        Raises:
            FileError: the record of verified uplinks can't be read.
        """
        record = config.record
        if isinstance(record, FormerUplinkRecord):
            if config.former_record is not None:
                return config
            record = UplinkRecord()
        is_needed = config.keeps_uplinks or (
            config.is_as_installed and self.has_record and self.expects_verified
        )
        if is_needed and not self.is_image:
            record = attrs.evolve(record, uplinks=self.verified)
        return config if record is config.record else attrs.evolve(config, record=record)

    def backends(self, families: Collection[Family]) -> tuple[RouteBackend, ...]:
        """Return the IPv4 backend, and the IPv6 backend if it is needed.

        The IPv6 backend is needed if ``families`` has IPv6, or if the host has IPv6 routes of ours.

        Raises:
            RouteError: the host is an image, or has no backend for IPv6.
        """
        if Family.IPV6 in families:
            return self.routes, self.routes_of(Family.IPV6)
        if self.snapshot is not None and self.snapshot.ipv6 is None:
            return (self.routes,)
        backend6 = self.routes6
        if backend6 is None or not read_our_routes(backend6):
            return (self.routes,)
        return self.routes, backend6

    def planned_backends(self, config: Config) -> tuple[RouteBackend, ...]:
        """Return the backends of the address families that a plan may have to change.

        Raises:
            RouteError: the kernel can't be queried.
        """
        backends = self.backends(config.static_routes.families)
        if len(backends) > 1 or not self._has_our_rules6:
            return backends
        return self.routes, self.routes_of(Family.IPV6)

    @property
    def _has_our_rules6(self) -> bool:
        if self.snapshot is not None and self.snapshot.ipv6 is None:
            return False
        if self.routes6 is None:
            return False
        try:
            rules = self.routes6.facts().rules
        except RouteError as error:
            # A kernel without IPv6 (ipv6.disable=1) has no rules.
            if error.errno == errno.EAFNOSUPPORT:
                return False
            raise
        return any(rule.is_ours for rule in rules)

    def checked_backends(self, config: Config) -> tuple[RouteBackend, ...]:
        """Return the IPv4 backend, and the IPv6 backend if the config expects IPv6 CIDRs.

        Raises:
            RouteError: the host is an image, or has no backend for IPv6.
        """
        families = {Family.IPV4, *config.route_overlap.families}
        return tuple(self.routes_of(family) for family in Family if family in families)

    def with_backends(self, backends: Mapping[Family, RouteBackend]) -> Host:
        """Return a copy of a live host that uses other backends for some families."""
        backend6 = self._backend6
        if Family.IPV6 in backends:
            backend6 = partial(_given, backends[Family.IPV6])
        return self._of(
            backend=backends.get(Family.IPV4, self.backend),
            units=self._units,
            layout=self._layout,
            backend6=backend6,
        )

    def our_routes(self) -> tuple[Route, ...]:
        """Return our IPv4 and IPv6 routes in table main."""
        return tuple(route for backend in self.backends(()) for route in read_our_routes(backend))

    def routes_of(self, family: Family) -> RouteBackend:
        """Return the routes backend for a family.

        Raises:
            RouteError: the host is an image, or has no backend for this family.
        """
        if family.value == 4:
            return self.routes
        backend6 = self.routes6
        if backend6 is None:
            raise RouteError(
                "can't ask for IPv6 routes: the host has no backend for them",
                hint=_hint_at_ipv6(self.backend),
            )
        return backend6


def _read_verified(path: str) -> tuple[VerifiedUplink, ...]:
    try:
        with open(path, "rb", opener=only_regular) as file:
            content = file.read(_RECORD_BYTES)
            since = rfc_3339(os.fstat(file.fileno()).st_mtime)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not os.path.lexists(path):
            return ()
        failed = FileError.of(f"read {path}", error)
        failed.hint = failed.hint or _how_to_record_anew(path)
        raise failed from error
    try:
        return parse_verified(content.decode("utf-8", "replace"), since)
    except ValueError as error:
        raise FileError(f"can't read {path}: {error}", hint=_how_to_record_anew(path)) from None


def _how_to_record_anew(path: str) -> str:
    return f"to record the default route's interface: rm -r {quote(path)} && hostrouting apply"


# A host that refers to one of these functions can be pickled. With lambdas, it couldn't.


def _given(backend: RouteBackend) -> RouteBackend:
    return backend


@cache
def _kernel6() -> RouteBackend:
    from hostrouting.kernel.netlink6 import NetlinkBackend6

    return NetlinkBackend6()


def _recorded6(snapshot: Snapshot) -> RouteBackend:
    from hostrouting.kernel.model import model_of

    return model_of(snapshot.known(Family.IPV6))


def _refuse_a_mix(routes: RouteBackend, routes6: RouteBackend) -> None:
    if _is_in_memory(routes) and _is_netlink(routes6):
        why = "is the kernel's, but routes is a FakeKernel: a test would change the real IPv6 table"
        raise ConfigError([("routes6", why)])


def _hint_at_ipv6(backend: RouteBackend | None) -> str:
    if backend is None:
        return ""
    if _is_in_memory(backend):
        return (
            "FakeKernel is IPv4-only: leave IPv6 out of the config, or use NetlinkBackend() and "
            "NetlinkBackend6() in a network namespace"
        )
    if _is_netlink(backend):
        return "give Host(routes6=NetlinkBackend6())"
    return "give Host(routes6=…) an IPv6 backend of the same kernel"


def _is_in_memory(backend: RouteBackend) -> bool:
    from hostrouting.kernel.memory import FakeKernel

    return isinstance(innermost(backend), FakeKernel)


def _is_netlink(backend: RouteBackend) -> bool:
    from hostrouting.kernel.netlink import NetlinkBackend

    return isinstance(innermost(backend), NetlinkBackend)


def check_snapshot(value: object, function: str) -> None:
    """Raise a ``TypeError`` unless the argument of a function is a snapshot."""
    from hostrouting.kernel.snapshot import Snapshot

    if not isinstance(value, Snapshot):
        raise TypeError(
            f"{function} takes a Snapshot, not {shown(value)}; read one with Snapshot.load(path)"
        )


def _check_backend(backend: RouteBackend | None, family: Family) -> None:
    if backend is None:
        return
    argument = "Host(routes=…)" if family is Family.IPV4 else "Host(routes6=…)"
    check_backend(backend, RouteBackend, family, argument)


def _require_layout(value: object) -> None:
    from hostrouting.boot.layout import Layout

    if not isinstance(value, Layout):
        raise TypeError(f"Host(layout=…) takes a Layout, such as Layout({shown(value)})")


def _refuse_a_part(
    routes: RouteBackend | None, units: UnitManager | None, layout: Layout | None
) -> None:
    """Raise a ConfigError if only a part of the host is this machine.

    Otherwise a test with a ``FakeKernel`` would install the gate on the machine that it runs on.
    """
    given = _given_for_another_host(routes, units, layout)
    if given is None:
        return
    fake = routes is not None and _is_in_memory(routes)
    must = f"must be given with {given}"
    problems: list[tuple[str, str]] = []
    if routes is None:
        problems.append(("routes", f"{must}: NetlinkBackend() or a FakeKernel()"))
    if units is None:
        known = "FakeSystemd()" if fake else "Systemctl() or FakeSystemd()"
        problems.append(("units", f"{must}: {known}"))
    if layout is None:
        problems.append(("layout", f"{must}: Layout(FOLDER), such as a temporary folder"))
    if fake:
        problems += _beside_a_fake(units, layout)
    if problems:
        raise ConfigError(problems)


def _given_for_another_host(
    routes: RouteBackend | None, units: UnitManager | None, layout: Layout | None
) -> str | None:
    """Return a phrase about an argument that can't be this machine's, or None."""
    if layout is not None and not layout.is_this_host:
        return f"a layout below {layout.root}"
    if routes is not None and _is_for_tests(routes):
        return f"a {type(innermost(routes)).__name__}"
    if units is not None and is_fake_systemd(units):
        return f"a {type(innermost_units(units)).__name__}"
    return None


def _beside_a_fake(units: UnitManager | None, layout: Layout | None) -> Iterator[tuple[str, str]]:
    """Yield a problem for each part that is this machine's, while routes is a FakeKernel."""
    from hostrouting.boot.systemctl import Systemctl

    why = "is this machine's, but routes is a FakeKernel: a test would change the machine"
    if isinstance(units, Systemctl) and units.is_this_host:
        yield "units", why
    if layout is not None and layout.is_this_host:
        yield "layout", why


def _is_for_tests(backend: RouteBackend) -> bool:
    """Return whether a backend is a FakeKernel or a NamespaceKernel."""
    from hostrouting.kernel.ip_commands import IpCommands

    return isinstance(innermost(backend), IpCommands)


def is_fake_systemd(units: UnitManager) -> bool:
    """Return whether a unit manager is a ``FakeSystemd``."""
    from hostrouting.boot.fake_systemd import FakeSystemd

    return isinstance(innermost_units(units), FakeSystemd)
