"""Pure: the config -> the texts of the scripts that run at boot.

Each asset is a script with a few ``@NAMES@``, which are substituted in one pass: values, and the parts that several
scripts share. What is data stands in a quoted here-document, a row each. Only values that the config's classes have
accepted reach a row: addresses, prefixes, numbers, and names and patterns of a small alphabet without blanks, quotes
or ``$``.
"""

from __future__ import annotations

import re
from importlib import resources
from typing import TYPE_CHECKING, Any

from hostrouting.config.overlap import CONTAINER_DEVS
from hostrouting.config.routing import Config, StaticRoute

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from ipaddress import IPv4Network

    from hostrouting.config.overlap import ExpectedCidr

__all__ = [
    "ROOM",
    "fill",
    "render_check",
    "render_check_route_overlap_script",
    "render_static_routes",
    "render_static_routes_script",
]

ROOM = "hostrouting.boot"

_SHARED = {"COMMON": "common.sh", "ROUTES_AWK": "routes.awk"}

_INHERITED = "*"  # no name of an interface, and no gateway


def render_static_routes_script(routes: Iterable[StaticRoute | Mapping[str, Any]], *, wait_seconds: int = 30) -> str:
    """Render the script that gives the kernel the static routes, all of them or none.

    Args:
        routes: from the config, or mappings like its JSON.
        wait_seconds: 0-600; how long to wait for the default route, devices and gateways, once for a whole run.

    Returns:
        The text of an executable file.

    Raises:
        ConfigError: with every value that breaks its rule.
    """
    return render_static_routes(Config(static_routes={"enabled": True, "routes": routes}, wait_seconds=wait_seconds))


def render_static_routes(config: Config) -> str:
    """The same of a whole config."""
    rows = [_route_row(route) for route in config.static_routes.routes]
    return fill("static-routes.sh", WAIT_SECONDS=f"{config.wait_seconds:d}", ROUTES="\n".join(rows))


def render_check_route_overlap_script(
    expected_cidrs: Iterable[str | IPv4Network | ExpectedCidr | Mapping[str, Any]],
    mode: str = "WARN",
    *,
    wait_seconds: int = 30,
    container_devs: Iterable[str] = CONTAINER_DEVS,
    allowed_devs: Iterable[str] = (),
    settle_seconds: int = 0,
    foreseen: Iterable[str | IPv4Network] = (),
) -> str:
    """Render the script that proves that every expected CIDR leaves by the default route's interface.

    Args:
        expected_cidrs: IPv4 CIDRs, each alone or as an ``ExpectedCidr``; host bits are masked.
        mode: ``WARN`` or ``STRICT``.
        wait_seconds: 0-600; how long to wait for the default route.
        container_devs: shell patterns of interfaces that belong to pods.
        allowed_devs: shell patterns of interfaces that may carry expected traffic.
        settle_seconds: 0-600; how long to wait for InfiniBand interfaces that have no address yet.
        foreseen: CIDRs that another interface may get later; what they would shadow is noted.

    Returns:
        The text of an executable file.

    Raises:
        ConfigError: with every value that breaks its rule.
    """
    config = Config(
        route_overlap={
            "expectedCidrs": expected_cidrs,
            "mode": mode,
            "containerDevs": container_devs,
            "allowedDevs": allowed_devs,
            "settleSeconds": settle_seconds,
            "foreseen": foreseen,
        },
        wait_seconds=wait_seconds,
    )
    return render_check(config)


def render_check(config: Config) -> str:
    """The same of a whole config."""
    overlap = config.route_overlap
    rows = [
        *(_row("expect", str(cidr)) for cidr in dict.fromkeys(each.cidr for each in overlap.expected_cidrs)),
        *(_row("container", pattern) for pattern in overlap.container_devs),
        *(_row("allow", pattern) for pattern in overlap.allowed_devs),
        *(_row("foreseen", str(cidr)) for cidr in dict.fromkeys(overlap.foreseen)),
    ]
    return fill(
        "check-route-overlap.sh",
        MODE=overlap.mode.value,
        COVERAGE="EXACT",
        WAIT_SECONDS=f"{config.wait_seconds:d}",
        SETTLE_SECONDS=f"{overlap.settle_seconds:d}",
        CONFIG="\n".join(rows),
    )


def _route_row(route: StaticRoute) -> str:
    gateway = _INHERITED if route.gateway is None else str(route.gateway)
    return _row(str(route.destination), gateway, _INHERITED if route.dev is None else route.dev, f"{route.metric:d}")


def _row(*words: str) -> str:
    # join, no f-string: of a str with a __format__ of its own it takes what was validated.
    return " ".join(words)


def fill(asset: str, *, room: str = ROOM, **values: str) -> str:
    """The text of an asset, with these in the places of its ``@NAMES@``; a line that is nothing else may go.

    Args:
        asset: the file's name.
        room: the package whose ``scripts`` it is in.
        values: by the names. ``@COMMON@`` and ``@ROUTES_AWK@`` are what the scripts share, for any room.
    """
    text = _read(room, asset)

    def value(match: re.Match[str]) -> str:
        line, word = match.groups()
        name = line or word
        found = _read(ROOM, _SHARED[name]) if name in _SHARED else values[name]
        return f"{found}\n" if line and found else found

    return re.sub(r"^@([A-Z_]+)@\n|@([A-Z_]+)@", value, text, flags=re.MULTILINE) + "\n"


def _read(room: str, asset: str) -> str:
    return resources.files(room).joinpath("scripts", asset).read_text(encoding="utf-8").rstrip("\n")
