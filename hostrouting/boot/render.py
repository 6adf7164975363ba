"""Render a config as the scripts that run at boot.

This module does no I/O. A template is a script with a few ``@NAMES@``. Placeholders are replaced
with values or with text that the scripts share, in one pass. Data is in a quoted here-document,
with one item per row. A row contains only values that the config's classes have accepted:
addresses, prefixes, numbers, and names and patterns without blanks, quotes or ``$``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from hashlib import sha256
from itertools import pairwise
from shlex import quote
from typing import Any

from hostrouting.boot import assets
from hostrouting.boot.manifest import SHARED_KEYS
from hostrouting.config.routing import (
    SECTION,
    Config,
    ExpectedCidr,
    Keep,
    StaticRoute,
    StaticRule,
)
from hostrouting.model.family import Family
from hostrouting.model.integer_prefixes import numbers
from hostrouting.model.parsing import reserved_blocks

PACKAGE = "hostrouting.boot"

# The address ranges between the reserved blocks. No range is before the first block or after the
# last one: these blocks contain the lowest and the highest address.
_JUDGED = {
    family: [
        (int(one.broadcast_address) + 1, int(other.network_address) - 1)
        for one, other in pairwise(sorted(reserved_blocks(family), key=numbers))
    ]
    for family in Family
}

# The word in a script's rows that stands for the default route's interface or gateway.
INHERITED = "*"


def render_static_routes(config: Config) -> str:
    """Render the static routes script for a config."""
    static = config.static_routes
    rows = [
        *_uplink_rows(config),
        *map(_route_row, static.routes),
        *map(_rule_row, static.rules),
        *map(_keep_row, static.keep),
    ]
    settle_seconds = config.route_overlap.address_seconds if static.keep else 0
    return fill(
        "static-routes.sh",
        WAIT_SECONDS=f"{config.wait_seconds:d}",
        SETTLE_SECONDS=f"{settle_seconds:d}",
        FAMILIES=family_words({Family.IPV4, *static.families}),
        IS_NAMED=_is_named(config),
        ROUTES="\n".join(rows),
    )


def render_no_routes() -> str:
    """Render a static routes script that has no routes, and so removes all of ours."""
    return fill(
        "static-routes.sh",
        WAIT_SECONDS="0",
        SETTLE_SECONDS="0",
        FAMILIES=family_words(tuple(Family)),
        IS_NAMED="",
        ROUTES="",
    )


def family_words(families: Collection[Family]) -> str:
    """Return the families' IP versions as a single shell word."""
    return quote(" ".join(str(family.value) for family in Family if family in families))


def _route_row(route: StaticRoute) -> str:
    """Return a route as a row with one field per attribute, in declaration order."""
    metric = route.metric or Family.of(route.destination).usual_metric
    return f"{route.destination} {route.gateway or INHERITED} {route.dev or INHERITED} {metric}"


def _rule_row(rule: StaticRule) -> str:
    return f"rule {rule.to} {rule.priority:d}"


def _keep_row(keep: Keep) -> str:
    """Return a row for ``keep``: the pattern as an awk regex, the pattern itself, the gateway."""
    return f"keep {_expression([keep.dev])} {keep.dev} {keep.gateway or INHERITED}"


def render_check(config: Config, *, python: str = "") -> str:
    """Render the check script for a config.

    Args:
        python: the interpreter that explains failures, and that judges hosts that the script can't;
            empty for none. If the interpreter is missing at run time, the script goes on without
            it.
    """
    overlap = config.route_overlap
    document = json.dumps(part_config(config, "routeOverlap"))
    return fill(
        "check-route-overlap.sh",
        MODE=overlap.mode.value,
        WAIT_SECONDS=f"{config.wait_seconds:d}",
        SETTLE_SECONDS=f"{overlap.address_seconds:d}",
        FAMILIES=family_words(overlap.families or {Family.IPV4}),
        IS_NAMED=_is_named(config),
        PYTHON=quote(python),
        CONFIG_SUM=sha256(f"{document}\n".encode()).hexdigest(),
        CONFIG="\n".join(_check_rows(config)),
        CONFIG_JSON=document,
    )


def part_config(config: Config, key: str) -> dict[str, dict[str, Any]]:
    """Return the config values that a part is rendered from: the given key and the shared keys."""
    keys = (key, *SHARED_KEYS)
    section = config.to_mapping(*keys)[SECTION]
    section["waitSeconds"] = config.wait_seconds  # to_mapping leaves out a default value
    return {SECTION: {each: section[each] for each in keys if each in section}}


def _check_rows(config: Config) -> Iterator[str]:
    overlap = config.route_overlap
    yield from _uplink_rows(config)
    yield f"container {_expression(overlap.container_devs)}"
    yield f"allowed {_expression(overlap.allowed_devs)}"
    # The check waits for addresses of the InfiniBand interfaces whose flags match this regex. By
    # default, the regex matches interfaces that are up; with settleSeconds, all interfaces.
    yield f"awaited {'[<,]UP[,>]' if overlap.settle_seconds is None else '<'}"
    for expected in dict.fromkeys(overlap.expected_cidrs):
        yield from _expected_rows(expected)


def _is_named(config: Config) -> str:
    return "" if config.uplinks is None else "yes"


def _uplink_rows(config: Config) -> Iterable[str]:
    if config.uplinks is not None:
        yield f"uplinks {_expression(config.uplinks)} {','.join(config.uplinks)}"


def _expected_rows(expected: ExpectedCidr) -> Iterable[str]:
    """Yield a row for each non-reserved range of an expected CIDR: its first and last address."""
    devs = (
        "" if expected.devs is None else f" {_expression(expected.devs)} {','.join(expected.devs)}"
    )
    family = Family.of(expected.cidr)
    # awk's numbers have only 53 bits, too few for an IPv6 address. So addresses are written as
    # hexadecimal words of equal length, which sort like the addresses. The letter x makes awk
    # compare the words as strings.
    digits = family.bits // 4
    for low, high in _JUDGED[family]:
        first = max(low, int(expected.cidr.network_address))
        last = min(high, int(expected.cidr.broadcast_address))
        if first <= last:
            yield f"expect x{first:0{digits}x} x{last:0{digits}x} {expected.cidr}{devs}"


# This regex matches no interface name, because the character is invalid in names.
_NONE = "/"


def _expression(patterns: Iterable[str]) -> str:
    """Return an awk regex, without anchors, for the names that these shell patterns match.

    Bracket expressions are expanded to alternatives, because awk implementations and fnmatch
    disagree on some of them.
    """
    return "|".join(map(_pattern_expression, patterns)) or _NONE


def _pattern_expression(pattern: str) -> str:
    parts = []
    # As in fnmatch, a leading ``]`` is part of the set, and an unclosed ``[`` matches itself.
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


# The name of a value, or of another template, and the end of the line if it follows.
_PLACEHOLDER = re.compile(r"@([A-Z_]+|[a-z-]+\.[a-z]+)@(\n?)")


def fill(asset: str, *, package: str = PACKAGE, **values: str) -> str:
    """Fill in a template's placeholders.

    ``@NAME@`` stands for a value, and ``@common.sh@`` for another template without its comments. A
    line with nothing but an empty placeholder is dropped. Of a script's comments, only the first
    paragraph stays. That paragraph says what the script does and how to call it.

    Args:
        asset: the template's file name.
        package: the package whose ``scripts`` folder contains the template.
        values: the values by name.

    Raises:
        FileError: the template can't be read.
    """

    def value(match: re.Match[str]) -> str:
        name, end = match.groups()
        if "." in name:
            found = filled(_without_comments(assets.read_asset(PACKAGE, name)))
        elif name not in values:
            raise LookupError(f"{asset} needs {name} from each function that renders it")
        else:
            found = values[name]
        begins_line = match.string[match.start() - 1 : match.start()] in ("", "\n")
        return f"{found}{end}" if found or not begins_line else ""

    def filled(text: str) -> str:
        return _PLACEHOLDER.sub(value, text)

    text = assets.read_asset(package, asset)
    if asset.endswith(".sh"):
        head, blank, rest = text.partition("\n\n")
        text = head + blank + _without_comments(rest)
    return filled(text) + "\n"


@cache
def _without_comments(text: str) -> str:
    """Drop comment lines, because cloud providers limit the size of an Ignition document."""
    return re.sub(r"^ *#.*\n?", "", text, flags=re.MULTILINE)
