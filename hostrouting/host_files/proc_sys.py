"""Find the interfaces for which a sysctl has a certain value."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hostrouting.boot.files import read_text
from hostrouting.boot.layout import Layout
from hostrouting.kernel.release import numbers_of
from hostrouting.model.links import Link

_CONF, _CONF6 = "/proc/sys/net/ipv4/conf", "/proc/sys/net/ipv6/conf"


def devs_ignoring_linkdown(
    layout: Layout, links: Iterable[Link], kernel: str | None
) -> tuple[str, ...] | None:
    """Return the interfaces whose routes are ignored when the carrier is down, or None if that is unknown.

    Args:
        layout: the host's layout.
        links: the host's links.
        kernel: the kernel's name and release, or None if unknown.

    Raises:
        FileError: a sysctl can't be read.
    """
    # "all" is ORed with the per-interface value (IN_DEV_ORCONF), but some kernels before Linux 5.11
    # ignore it.
    if (numbers_of(kernel) or (5, 11)) < (5, 11) and _value(
        layout, "all", "ignore_routes_with_linkdown"
    ) == "1\n":
        return None
    return _devs_with(
        lambda of_all, value: max(of_all, value) > 0, "ignore_routes_with_linkdown", layout, links
    )


def strict_devs(layout: Layout, links: Iterable[Link]) -> tuple[str, ...] | None:
    """Return the interfaces that drop a packet if the reply would leave through another interface.

    If the sysctl doesn't exist, return None. The arguments and errors are those of
    ``devs_without_ipv6``.
    """
    # The larger of the values for "all" and the interface counts (IN_DEV_RPFILTER). The value 2
    # only requires a route to the sender, through any interface.
    return _devs_with(lambda of_all, value: max(of_all, value) == 1, "rp_filter", layout, links)


def devs_without_ipv6(layout: Layout, links: Iterable[Link]) -> tuple[str, ...]:
    """Return the interfaces for which IPv6 is disabled.

    Args:
        layout: the host's layout.
        links: the host's links.

    Raises:
        FileError: a sysctl can't be read.
    """
    return tuple(
        link.name
        for link in links
        if read_text(layout.of(f"{_CONF6}/{link.name}/disable_ipv6")) == "1\n"
    )


def _devs_with(
    is_set: Callable[[int, int], bool], name: str, layout: Layout, links: Iterable[Link]
) -> tuple[str, ...] | None:
    if (of_all := _value(layout, "all", name)) is None:
        return None
    return tuple(
        link.name
        for link in links
        if is_set(int(of_all), int(_value(layout, link.name, name) or 0))
    )


def _value(layout: Layout, dev: str, name: str) -> str | None:
    return read_text(layout.of(f"{_CONF}/{dev}/{name}"))
