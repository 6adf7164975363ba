"""Tests that each number in a config has bounds, which are kept."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from config_schema import VALIDATOR, integer_keys

from hostrouting import Config, ConfigError
from hostrouting.azure import HostNetworking

# The lowest and the highest value of each key.
BOUNDS = {
    "hostNetworking.staleAzureVnet.lockWaitSeconds": (0, 600),
    "hostRouting.routeOverlap.settleSeconds": (0, 600),
    "hostRouting.staticRoutes.routes[0].metric": (0, 2**32 - 1),
    "hostRouting.staticRoutes.rules[0].priority": (1, 32765),
    "hostRouting.waitSeconds": (0, 600),
}
# A valid document that contains the object of each key.
DOCUMENT = """
    {"hostRouting": {
        "staticRoutes": {
            "enabled": true,
            "routes": [{"destination": "172.16.1.0/24"}],
            "rules": [{"to": "10.244.0.0/16", "priority": 5269}]},
        "routeOverlap": {"expectedCidrs": ["172.16.1.0/24"]}},
     "hostNetworking": {"staleAzureVnet": {"cidrs": ["10.0.0.0/8"]}}}
"""


def placed(path: str, value: object) -> dict[str, Any]:
    """Return the document with a value at a path."""
    document: dict[str, Any] = json.loads(DOCUMENT)
    *above, key = keys_of(path)
    holder: Any = document
    for each in above:
        holder = holder[each]
    holder[key] = value
    return document


def keys_of(path: str) -> list[str | int]:
    return [int(word) if word.isdigit() else word for word in re.findall(r"\w+", path)]


def read(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document as the configs of both sections write it, without defaults."""
    return Config.from_mapping(document).to_mapping() | {
        "hostNetworking": HostNetworking.from_mapping(document).to_mapping()["hostNetworking"]
    }


def test_every_number_has_bounds_here() -> None:
    in_schema = {
        path: (schema.get("minimum"), schema.get("maximum"))
        for path, schema in integer_keys().items()
    }
    wrong = {path: in_schema.get(path) for path in in_schema.keys() ^ BOUNDS.keys()}
    assert not wrong, f"add to BOUNDS each of these keys with its bounds, or delete it: {wrong}"
    assert in_schema == BOUNDS, "the schema, which docs/make_schema.py writes, has other bounds"


@pytest.mark.parametrize(
    ("path", "value"), [(path, bound) for path, bounds in BOUNDS.items() for bound in bounds]
)
def test_a_bound_is_kept_unchanged(path: str, value: int) -> None:
    document = placed(path, value)
    assert VALIDATOR.is_valid(document)
    found: Any = read(document)
    *above, key = keys_of(path)
    for each in above:
        found = found[each]
    assert found.get(key, integer_keys()[path].get("default")) == value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (path, beyond)
        for path, (lowest, highest) in BOUNDS.items()
        for beyond in (lowest - 1, highest + 1)
    ],
)
def test_a_number_beyond_a_bound_is_refused(path: str, value: int) -> None:
    document = placed(path, value)
    assert not VALIDATOR.is_valid(document)
    with pytest.raises(ConfigError) as caught:
        read(document)
    lowest, highest = BOUNDS[path]
    ((named, words),) = caught.value.problems
    assert named == path
    assert words == f"{value} is out of range; expected {lowest} to {highest}"
