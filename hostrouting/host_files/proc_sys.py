"""Find the interfaces for which a sysctl has a certain value."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hostrouting.boot.files import read_text
from hostrouting.boot.layout import Layout
from hostrouting.kernel.release import numbers_of
from hostrouting.model.links import Link

_CONF = "/proc/sys/net/ipv4/conf"
_CONF6 = "/proc/sys/net/ipv6/conf"


def devs_ignoring_linkdown(
    layout: Layout,
    links: Iterable[Link],
    kernel: str | None,
) -> tuple[str, ...] | None:
    """Return the interfaces whose routes the kernel ignores while they have no carrier.

    The result is None if that isn't known.

    Args:
        kernel: the kernel's name and release; None if they aren't known.

    Raises:
        FileError: a sysctl can't be read.
    """
    name = "ignore_routes_with_linkdown"
    # The kernel ORs the value of "all" with that of the interface (IN_DEV_ORCONF). Some kernels
    # before Linux 5.11 ignore "all", so it isn't known whether 1 has an effect there.
    is_old = (numbers_of(kernel) or (5, 11)) < (5, 11)
    if is_old and _value(layout, "all", name) == "1\n":
        return None
    return _devs_with(lambda of_all, value: max(of_all, value) > 0, name, layout, links)


def strict_devs(layout: Layout, links: Iterable[Link]) -> tuple[str, ...] | None:
    """Return the interfaces that drop a packet if the reply would leave through another interface.

    If the sysctl doesn't exist, return None. The arguments and errors are those of
    ``devs_without_ipv6``.
    """
    # The kernel uses the larger of the values for "all" and for the interface (IN_DEV_RPFILTER).
    # The value 2 only requires a route to the sender, through any interface.
    return _devs_with(lambda of_all, value: max(of_all, value) == 1, "rp_filter", layout, links)


def devs_without_ipv6(layout: Layout, links: Iterable[Link]) -> tuple[str, ...]:
    """Return the interfaces for which IPv6 is disabled.

    Raises:
        FileError: a sysctl can't be read.
    """
    paths = {link.name: layout.of(f"{_CONF6}/{link.name}/disable_ipv6") for link in links}
    return tuple(dev for dev, path in paths.items() if read_text(path) == "1\n")


def _devs_with(
    is_set: Callable[[int, int], bool],
    name: str,
    layout: Layout,
    links: Iterable[Link],
) -> tuple[str, ...] | None:
    value_of_all = _value(layout, "all", name)
    if value_of_all is None:
        return None
    devs = []
    for link in links:
        value = _value(layout, link.name, name) or "0"
        if is_set(int(value_of_all), int(value)):
            devs.append(link.name)
    return tuple(devs)


def _value(layout: Layout, dev: str, name: str) -> str | None:
    return read_text(layout.of(f"{_CONF}/{dev}/{name}"))
