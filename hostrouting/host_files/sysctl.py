"""Read a sysctl of each interface."""

from __future__ import annotations

from collections.abc import Iterable

from hostrouting.boot.files import read_text
from hostrouting.boot.layout import Layout
from hostrouting.model.links import Link

_SYSCTL = "/proc/sys/net/ipv4/conf/{}/ignore_routes_with_linkdown"


def devs_ignoring_linkdown(layout: Layout, links: Iterable[Link]) -> tuple[str, ...] | None:
    """Return the interfaces whose routes are ignored when the carrier is down, or None if the sysctl doesn't exist.

    Args:
        layout: the host's layout.
        links: the host's links.

    Raises:
        FileError: a sysctl can't be read.
    """

    def value(name: str) -> str | None:
        return read_text(layout.of(_SYSCTL.format(name)))

    # "all" is ORed with the per-interface value (IN_DEV_ORCONF).
    if (of_all := value("all")) is None:
        return None
    return tuple(link.name for link in links if {of_all, value(link.name)} - {"0\n", None})
