"""Tests that any JSON parser output yields either a config or a single ConfigError with one line per problem."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hostrouting import Config, ConfigError
from hostrouting.model.parsing import parse_device, parse_prefix

SCHEMA = json.loads(files("hostrouting.config").joinpath("config.schema.json").read_text())


def _keys(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", ())
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _keys(inner)


KEYS = sorted(set(_keys(SCHEMA)))
WORDS = ["", "10.0.0.0/8", "10.0.0.1", "onlink", "eth0", "STRICT", "0.0.0.0/0", "::/0", "a\nb", "/a/b.prom"]

leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=True), st.sampled_from(WORDS), st.text(max_size=20)
)
documents = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text(max_size=5)), inner)
    ),
    max_leaves=30,
)


@given(documents)
def test_any_section_is_a_config_or_one_config_error(section: Any) -> None:
    try:
        config = Config.from_mapping({"hostRouting": section})
    except ConfigError as error:
        assert error.problems
        assert len(str(error).splitlines()) == len(error.problems)
        assert all(path.startswith("hostRouting") and message for path, message in error.problems)
    else:
        assert Config.from_mapping(config.to_mapping()) == config


@given(st.text())
def test_only_canonical_prefixes_and_plain_names_pass(text: str) -> None:
    """The parsers accept only canonical text, so nothing else can reach a script or a netlink message."""
    for parse in (parse_prefix, parse_device):
        try:
            value = parse(text)
        except ValueError as error:
            assert str(error).isprintable()
        else:
            assert str(value) == text
