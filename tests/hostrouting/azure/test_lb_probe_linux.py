"""What nft and unshare may answer, played by small programs of that name; the real ones are in tests/kernel."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from hostrouting.azure.nodes import LoadBalancerProbeError
from hostrouting.azure.probe.linux import LinuxProbeNode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NO_TABLE = """Error: No such file or directory
list table ip6 t
               ^
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("sh", "cat"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    return tmp_path


def node(folder: Path, *, nft: str | None = None, unshare: str | None = None) -> LinuxProbeNode:
    for name, body in (("nft", nft), ("unshare", unshare)):
        if body is not None:
            program = folder / name
            program.write_text(f"#!/bin/sh\n{body}\n")
            program.chmod(0o755)
    return LinuxProbeNode(search_path=str(folder))


def fails(stderr: str, code: int = 1) -> str:
    return f"cat >&2 <<'END'\n{stderr}END\nexit {code}"


def test_a_table_that_is_not_there_is_none_also_where_nft_guesses_what_was_meant(folder: Path) -> None:
    assert node(folder, nft=fails(NO_TABLE)).listing("t") is None
    guessing = NO_TABLE.replace("directory", "directory; did you mean table 'u' in family ip6?", 1)
    assert node(folder, nft=fails(guessing)).listing("t") is None


def test_anything_else_that_is_missing_is_an_error(folder: Path) -> None:
    other = "netlink: Error: cache initialization failed: No such file or directory\n"
    with pytest.raises(LoadBalancerProbeError, match="nft refused: netlink: Error: cache"):
        node(folder, nft=fails(other)).listing("t")


def test_a_listing_is_asked_for_without_counters_in_plain_english(folder: Path) -> None:
    assert node(folder, nft='echo "$@ $LC_ALL"').listing("t") == "-s list table ip6 t C\n"


def test_without_nft_the_package_is_named(folder: Path) -> None:
    without = node(folder, unshare='shift; exec "$@"')
    calls: list[Callable[[], object]] = [
        lambda: without.listing("t"),
        lambda: without.load("x"),
        lambda: without.dry_run("x", "t"),
    ]
    for call in calls:
        with pytest.raises(LoadBalancerProbeError, match="nft isn't installed; install the package nftables") as caught:
            call()
        assert caught.value.errno == errno.ENOENT


def test_without_unshare_the_package_is_named(folder: Path) -> None:
    with pytest.raises(LoadBalancerProbeError, match="unshare isn't installed; install the package util-linux"):
        node(folder, nft="exit 0").dry_run("x", "t")


@pytest.mark.parametrize(
    "said",
    [
        "Operation not permitted (you must be root)\nnetlink: Error: cache initialization failed: Operation not permitted\n",
        "unshare: unshare failed: Operation not permitted\n",
    ],
)
def test_a_refusal_for_want_of_privileges_is_known_as_such(folder: Path, said: str) -> None:
    with pytest.raises(LoadBalancerProbeError, match="run as root") as caught:
        node(folder, unshare=fails(said)).dry_run("x", "t")
    assert caught.value.is_not_permitted
    with pytest.raises(LoadBalancerProbeError) as caught:
        node(folder, nft=fails(said)).load("x")
    assert caught.value.is_not_permitted


def test_a_program_that_may_not_be_run_is_a_refusal(folder: Path) -> None:
    there = node(folder, nft="exit 0")
    (folder / "nft").chmod(0o644)
    with pytest.raises(LoadBalancerProbeError, match="can't run nft") as caught:
        there.load("x")
    assert caught.value.errno == errno.EACCES


def test_a_namespace_that_cannot_be_made_is_told(folder: Path) -> None:
    with pytest.raises(LoadBalancerProbeError, match="unshare refused: .*No space left"):
        node(folder, unshare=fails("unshare: unshare failed: No space left on device\n")).dry_run("x", "t")


def test_what_nft_says_of_a_rejected_text_is_kept(folder: Path) -> None:
    said = "/dev/stdin:1:31-31: Error: syntax error, unexpected '}'\n"
    with pytest.raises(LoadBalancerProbeError, match="can't load the nftables rules: nft refused: /dev/stdin:1:31-31"):
        node(folder, nft=fails(said)).load("x")
    with pytest.raises(LoadBalancerProbeError, match="exit code 3"):
        node(folder, nft="exit 3").load("x")


def test_the_text_goes_to_nft_as_it_is_and_at_once(folder: Path) -> None:
    node(folder, nft=f'cat >> "{folder}/got"').load("table ip6 t {\n}\n")
    assert (folder / "got").read_text() == "table ip6 t {\n}\n"
