"""Any output of a JSON parser is either a config or a single ConfigError with a line for every problem."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from hostrouting import Config, ConfigError, ExpectedCidr, RouteOverlap, StaticRoute, StaticRoutes
from hostrouting.model.parsing import parse_device, parse_prefix

KEYS = ["hostRouting", "staticRoutes", "routeOverlap", "enabled", "routes", "destination", "gateway", "dev", "metric",
        "expectedCidrs", "mode", "containerDevs", "allowedDevs", "settleSeconds", "waitSeconds", "cidr", "devs",
        "watch", "textfile"]  # fmt: skip
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
    """A parser accepts only the text that it prints, so that no other text can reach a script or a netlink message."""
    for parse in (parse_prefix, parse_device):
        try:
            value = parse(text)
        except ValueError as error:
            assert str(error).isprintable()
        else:
            assert str(value) == text


@given(st.integers(0, 2**32 - 1), st.integers(0, 32))
def test_an_expected_cidr_is_masked_or_lies_in_a_special_block(number: int, length: int) -> None:
    network = IPv4Network((number, length), strict=False)
    from ipaddress import IPv4Address

    try:
        overlap = RouteOverlap([f"{IPv4Address(number)}/{length}"])
    except ConfigError as error:
        assert "lies in" in str(error)
        assert int(network.network_address) >> 24 in {0, 127, *range(224, 256)}
    else:
        assert overlap.expected_cidrs == (ExpectedCidr(network),)


# Each field has few values, so that entries have much in common. Some wrong values (True, 1.0) equal correct ones.
entries = st.fixed_dictionaries(
    {},
    optional={
        "destination": st.sampled_from(["10.0.0.0/24", "10.0.1.0/24", "10.0.1.1/24", "127.0.0.0/24", 7, None]),
        "gateway": st.sampled_from(["10.0.0.1", "onlink", "", "127.0.0.1", None, 1, True, ["10.0.0.1"]]),
        "dev": st.sampled_from(["eth0", "", "a/b", None, 1]),
        "metric": st.sampled_from([0, 1, 2, True, 1.0, "1", -1, None]),
        "metrics": st.just(None),
    },
)


@given(st.lists(entries, max_size=8))
@example([{"destination": "10.0.0.0/24", "metric": 1}, {"destination": "10.0.1.0/24", "metric": True}])
@example([{"destination": "10.0.0.0/24", "metric": 1}, {"destination": "10.0.1.0/24", "metric": 1.0}])
@example([{"destination": "10.0.0.0/24"}, {"destination": "10.0.1.0/24", "metrics": None}])
@example([{"destination": "10.0.0.0/24"}, {"metrics": "10.0.1.0/24"}])
def test_each_of_many_entries_is_read_alone(many: list[dict[str, Any]]) -> None:
    routes: list[StaticRoute] = []
    problems: list[tuple[str, str]] = []
    for position, entry in enumerate(many):
        try:
            routes += StaticRoutes(True, [entry]).routes
        except ConfigError as error:
            problems += [(path.replace("[0]", f"[{position}]"), message) for path, message in error.problems]
    keys = [(route.destination, route.metric) for route in routes]
    try:
        found = StaticRoutes(True, many).routes
    except ConfigError as error:
        twins = [problem for problem in error.problems if "is already routes[" in problem[1]]
        assert len(twins) == len(keys) - len(set(keys))
        assert [problem for problem in error.problems if problem not in twins] == problems
    else:
        assert not problems
        assert found == tuple(routes)
        assert [type(route.metric) for route in found] == [int] * len(found)
