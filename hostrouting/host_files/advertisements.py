"""Tell why the kernel takes no IPv6 default route from router advertisements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from shlex import quote

from hostrouting.boot.files import read_text
from hostrouting.boot.layout import Layout
from hostrouting.host_files.managers import NETWORK_MANAGER, NETWORKD, is_managed
from hostrouting.kernel.default_routes import is_among
from hostrouting.kernel.rules import LOOPBACK
from hostrouting.model.errors import FileError
from hostrouting.model.links import Link
from hostrouting.model.values import frozen

_SYSCTL = "/proc/sys/net/ipv6/conf/{}/{}"

# The kinds of interfaces on which a router may advertise itself. A physical interface has no kind
# (None).
_KINDS = (None, "bond", "team", "vlan")


@frozen(eq=False, repr=False)
class IgnoredAdvertisements:
    """An interface on which the kernel ignores router advertisements.

    Args:
        dev: the name of the interface.
        reason: why the kernel ignores the advertisements, as a clause.
        command: a command that makes the kernel accept the next advertisement.
        is_due_to_forwarding: whether the reason is that the host forwards packets.
    """

    dev: str
    reason: str
    command: str
    is_due_to_forwarding: bool

    def __str__(self) -> str:
        return f"{self.dev} ignores router advertisements, because {self.reason}: {self.command}"


def ignored_advertisements(
    layout: Layout,
    links: Iterable[Link],
    patterns: tuple[str, ...] | None,
) -> Iterator[IgnoredAdvertisements]:
    """Yield the interfaces on which the kernel makes no default route from router advertisements.

    Interfaces whose network manager handles the advertisements itself, and sets accept_ra to 0,
    aren't included.

    Args:
        patterns: shell-style patterns for the interfaces. None means all interfaces on which a
            router may advertise itself.

    Raises:
        FileError: a sysctl or a manager's file can't be read.
    """
    for link in links:
        is_examined = _may_have_router(link) if patterns is None else is_among(link.name, patterns)
        if is_examined and (ignored := _ignored(layout, link)):
            yield ignored


def _may_have_router(link: Link) -> bool:
    is_port = link.master is not None
    return link.kind in _KINDS and link.is_up and not is_port and link.name != LOOPBACK


def _ignored(layout: Layout, link: Link) -> IgnoredAdvertisements | None:
    accept_ra = _value(layout, link.name, "accept_ra")
    forwards = _value(layout, link.name, "forwarding") not in ("", "0")
    # The kernel decides in the same way (ipv6_accept_ra).
    if accept_ra == "1" and forwards:
        reason = "it forwards packets and its accept_ra is 1"
    elif accept_ra == "0" and not _is_managed(layout, link):
        reason = "its accept_ra is 0, and no network manager claims it"
    else:
        return None
    # Use slashes, because sysctl(8) treats a dot in an interface's name as a separator.
    setting = quote(f"net/ipv6/conf/{link.name}/accept_ra={2 if forwards else 1}")
    is_due_to_forwarding = accept_ra == "1"
    return IgnoredAdvertisements(link.name, reason, f"sysctl -w {setting}", is_due_to_forwarding)


def why_ignored(
    layout: Layout,
    links: Iterable[Link],
    patterns: tuple[str, ...] | None,
) -> list[str]:
    """Return a sentence for each interface that ignores advertisements.

    If a file can't be read, the only sentence is the error.

    The arguments are those of ``ignored_advertisements``.
    """
    try:
        return [*map(str, ignored_advertisements(layout, links, patterns))]
    except FileError as error:
        return [error.clause]


def _is_managed(layout: Layout, link: Link) -> bool:
    managers = (NETWORKD, NETWORK_MANAGER)
    return any(is_managed(layout.root, manager, link.index) for manager in managers)


def _value(layout: Layout, dev: str, name: str) -> str:
    return (read_text(layout.of(_SYSCTL.format(dev, name))) or "").strip()
