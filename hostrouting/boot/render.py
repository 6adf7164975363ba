"""Pure: the config -> the texts of the scripts that run at boot.

Each asset is a script with a few ``@NAMES@``, which are substituted in one pass: values, and the parts that several
scripts share. What is data stands in a quoted here-document, a row each. Only values that the config's classes have
accepted reach a row: addresses, prefixes, numbers, and names and patterns of a small alphabet without blanks, quotes
or ``$``.
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

# What is between reserved blocks, the first and the last of which are the ends of the address space.
_JUDGED = [
    (int(one.broadcast_address) + 1, int(other.network_address) - 1) for one, other in pairwise(sorted(RESERVED))
]

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
    """Render the script of a whole config."""
    # A word for each field, in the order of the class.
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
    """Render the script that proves that every expected CIDR leaves by the node's uplinks.

    Args:
        expected_cidrs: IPv4 CIDRs, each alone or as an ``ExpectedCidr``; host bits are masked.
        mode: ``WARN`` or ``STRICT``.
        wait_seconds: 0-600; how long to wait for the default route.
        container_devs: shell patterns of interfaces that belong to pods.
        allowed_devs: shell patterns of interfaces that may carry expected traffic.
        settle_seconds: 0-600; how long to wait for InfiniBand interfaces that have no address yet. None: in STRICT
            60 s for those that are up.
        foreseen: CIDRs that another interface may get later; the script, which has no notes, has no use for them.

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


def render_check(config: Config, *, python: str = "") -> str:
    """Render the check script of a whole config.

    Args:
        config: what is expected.
        python: the program that explains a failing verdict, if it is still there; empty: none does.
    """
    overlap = config.route_overlap
    rows = [
        *_uplink_rows(config),
        _row("container", _expression(overlap.container_devs)),
        _row("allowed", _expression(overlap.allowed_devs)),
        # In the flags of an InfiniBand interface.
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
    """Yield the parts of an expected CIDR that are judged, from first to last address."""
    own = () if expected.devs is None else (_expression(expected.devs), ",".join(expected.devs))
    words = (str(expected.cidr), *own)
    for low, high in _JUDGED:
        first, last = max(low, int(expected.cidr.network_address)), min(high, int(expected.cidr.broadcast_address))
        if first <= last:
            yield _row("expect", f"{first:d}", f"{last:d}", *words)


# In no name of an interface.
_NONE = "/"


def _expression(patterns: Iterable[str]) -> str:
    """Return an awk expression that matches as unanchored shell patterns do; awks and fnmatch differ in corners."""
    return "|".join(map(_pattern_expression, patterns)) or _NONE


def _pattern_expression(pattern: str) -> str:
    parts = []
    # As fnmatch does: a bracket that stands first in a set is one of it, and one that isn't closed is a letter.
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
        return value  # str() would ask one with a __str__ of its own
    return f"{value:d}" if isinstance(value, int) else str(value)


def _row(*words: str) -> str:
    # join, no f-string: of a str with a __format__ of its own it takes what was validated.
    return " ".join(words)


def fill(asset: str, *, room: str = ROOM, **values: str) -> str:
    """Fill the ``@NAMES@`` of an asset; a line that holds a name alone goes with an empty value.

    Args:
        asset: the file's name.
        room: the package whose ``scripts`` it is in.
        values: by the names. ``@COMMON@``, ``@ROUTES_AWK@`` and ``@BUNDLE@`` are what scripts share, for any room.

    Raises:
        FileError: it can't be read.
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
