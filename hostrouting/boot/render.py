"""Render a config as the texts of the scripts that run at boot.

All functions are pure. Each asset is a script with a few ``@NAMES@``, which are replaced in one pass by values or by
text that several scripts share. Data is in a quoted here-document, one row each. A row contains only values that the
config's classes have accepted: addresses, prefixes, numbers, and names and patterns of a small alphabet without blanks,
quotes or ``$``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from importlib import resources
from ipaddress import IPv4Network
from itertools import pairwise
from shlex import quote
from typing import Any

import attrs

from hostrouting.boot.files import translate_errors
from hostrouting.config.routing import CONTAINER_DEVS, Config, ExpectedCidr, StaticRoute
from hostrouting.model.parsing import RESERVED

ROOM = "hostrouting.boot"

_SHARED = {"COMMON": "common.sh", "ROUTES_AWK": "routes.awk", "BUNDLE": "bundle.sh"}

# The ranges between the reserved blocks, which include both ends of the address space.
_JUDGED = [
    (int(one.broadcast_address) + 1, int(other.network_address) - 1) for one, other in pairwise(sorted(RESERVED))
]

_INHERITED = "*"  # neither an interface name nor a gateway can look like this


def render_static_routes_script(routes: Iterable[StaticRoute | Mapping[str, Any]], *, wait_seconds: int = 30) -> str:
    """Render the script that installs either all of the static routes in the kernel, or none of them.

    Args:
        routes: the config's routes, or mappings in the form of its JSON.
        wait_seconds: 0-600; how long one run waits in all for the default route, devices and gateways.

    Returns:
        The text of an executable file.

    Raises:
        ConfigError: values break their rules; the error lists all of them.
    """
    return render_static_routes(Config(static_routes={"enabled": True, "routes": routes}, wait_seconds=wait_seconds))


def render_static_routes(config: Config) -> str:
    """Render the script of the static routes for a whole config."""
    # One field of the row for each attribute, in the class's order.
    routes = [_row(*map(_word, attrs.astuple(route, recurse=False))) for route in config.static_routes.routes]
    rows = [*_uplink_rows(config), *routes]
    return fill("static-routes.sh", WAIT_SECONDS=f"{config.wait_seconds:d}", ROUTES="\n".join(rows))


def render_check_route_overlap_script(
    expected_cidrs: Iterable[str | IPv4Network | ExpectedCidr | Mapping[str, Any]],
    mode: str = "WARN",
    *,
    wait_seconds: int = 30,
    container_devs: Iterable[str] = CONTAINER_DEVS,
    allowed_devs: Iterable[str] = (),
    settle_seconds: int | None = None,
    foreseen: Iterable[str | IPv4Network] = (),
) -> str:
    """Render the script that proves that every expected CIDR leaves through the node's uplinks.

    Args:
        expected_cidrs: the IPv4 CIDRs, as text or as ``ExpectedCidr``; host bits are masked.
        mode: ``WARN`` or ``STRICT``.
        wait_seconds: 0-600; how long to wait for the default route.
        container_devs: shell patterns of interfaces that belong to pods.
        allowed_devs: shell patterns of interfaces that may carry expected traffic.
        settle_seconds: 0-600; how long to wait for InfiniBand interfaces without an address. By default, the script
            waits 60 s for those that are up, and only in STRICT mode.
        foreseen: the CIDRs that another interface may get later; validated but not used, because the script prints no
            notes.

    Returns:
        The text of an executable file.

    Raises:
        ConfigError: values break their rules; the error lists all of them.
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


def render_check(config: Config, *, python: str = "") -> str:
    """Render the check script for a whole config.

    Args:
        config: the whole config.
        python: the program that explains a failure, if it still exists by then, or an empty string.
    """
    overlap = config.route_overlap
    rows = [
        *_uplink_rows(config),
        _row("container", _expression(overlap.container_devs)),
        _row("allowed", _expression(overlap.allowed_devs)),
        # This is matched against the flags of an InfiniBand interface.
        _row("awaited", "[<,]UP[,>]" if overlap.settle_seconds is None else "<"),
        *(row for expected in dict.fromkeys(overlap.expected_cidrs) for row in _expected_rows(expected)),
    ]
    return fill(
        "check-route-overlap.sh",
        MODE=overlap.mode.value,
        WAIT_SECONDS=f"{config.wait_seconds:d}",
        SETTLE_SECONDS=f"{overlap.address_seconds:d}",
        PYTHON=quote(python),
        CONFIG="\n".join(rows),
    )


def _uplink_rows(config: Config) -> Iterable[str]:
    if config.uplinks is not None:
        yield _row("uplinks", _expression(config.uplinks), ",".join(config.uplinks))


def _expected_rows(expected: ExpectedCidr) -> Iterable[str]:
    """Yield a row for each part of an expected CIDR that is judged, from the first address to the last."""
    own = () if expected.devs is None else (_expression(expected.devs), ",".join(expected.devs))
    words = (str(expected.cidr), *own)
    for low, high in _JUDGED:
        first, last = max(low, int(expected.cidr.network_address)), min(high, int(expected.cidr.broadcast_address))
        if first <= last:
            yield _row("expect", f"{first:d}", f"{last:d}", *words)


# A character that no interface name contains.
_NONE = "/"


def _expression(patterns: Iterable[str]) -> str:
    """Return an awk expression that matches what any of the shell patterns matches, but isn't anchored.

    Different awks and fnmatch treat some patterns differently, so each set is spelled out as letters.
    """
    return "|".join(map(_pattern_expression, patterns)) or _NONE


def _pattern_expression(pattern: str) -> str:
    parts = []
    # As in fnmatch, a closing bracket at the start of a set belongs to the set, and an unclosed bracket is a plain
    # character.
    for part in re.findall(r"\[\]?[^]]*\]|.", pattern):
        if len(part) == 1:
            parts.append({"*": ".*", "?": "."}.get(part) or _letter_expression(part))
        else:
            letters = [letter for letter in map(chr, range(33, 127)) if fnmatchcase(letter, part)]
            parts.append(f"({'|'.join(map(_letter_expression, letters)) or _NONE})")
    return "".join(parts)


def _letter_expression(letter: str) -> str:
    if letter in "^\\":
        return f"\\{letter}"
    return letter if letter.isalnum() or letter in "_-" else f"[{letter}]"


def _word(value: object) -> str:
    if value is None:
        return _INHERITED
    if isinstance(value, str):
        return value  # str() would call a subclass's own __str__
    return f"{value:d}" if isinstance(value, int) else str(value)


def _row(*words: str) -> str:
    # join() is used because a str subclass could change the validated text in an f-string through its own __format__.
    return " ".join(words)


def fill(asset: str, *, room: str = ROOM, **values: str) -> str:
    """Fill in the ``@NAMES@`` of an asset; remove a line that consists of one name if its value is empty.

    Args:
        asset: the file's name.
        room: the package whose ``scripts`` folder holds the asset.
        values: the values by name. ``@COMMON@``, ``@ROUTES_AWK@`` and ``@BUNDLE@`` stand for texts that all packages
            share.

    Raises:
        FileError: the asset can't be read.
    """
    text = _read(room, asset)

    def value(match: re.Match[str]) -> str:
        line, word = match.groups()
        name = line or word
        found = _read(ROOM, _SHARED[name]) if name in _SHARED else values[name]
        return f"{found}\n" if line and found else found

    return re.sub(r"^@([A-Z_]+)@\n|@([A-Z_]+)@", value, text, flags=re.MULTILINE) + "\n"


def _read(room: str, asset: str) -> str:
    path = resources.files(room) / "scripts" / asset
    with translate_errors(f"read {path}"):
        return path.read_text(encoding="utf-8").rstrip("\n")
