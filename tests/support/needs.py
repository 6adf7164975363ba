"""Skip tests that presuppose a newer kernel, or an option that it was built without.

Each skip names its reason.
"""

from __future__ import annotations

import os

import pytest
from node import attempt

from hostrouting.kernel.release import numbers_of

__all__ = [
    "NO_BROADCAST",
    "NO_LINKS",
    "needs_connection_tracking",
    "needs_encapsulation",
    "needs_links",
    "needs_linux",
]

NO_BROADCAST = (5, 14, "the first address of a subnet isn't a broadcast address")
"""Arguments of ``needs_linux``."""


def needs_linux(major: int, minor: int, what: str) -> None:
    """Skip a test on kernels before a release.

    Args:
        major: the release's first number.
        minor: its second number.
        what: what the kernel lacks before it.
    """
    release = os.uname().release
    if (numbers_of(release) or ()) < (major, minor):
        pytest.skip(f"Linux {release} lacks what {major}.{minor} has: {what}")


def needs_encapsulation(kind: str) -> None:
    """Skip a test if the kernel was built without a kind of encapsulation, such as ``seg6``.

    The calling thread's network namespace needs ``lo`` to be up.
    """
    words = {"seg6": "seg6 mode encap segs fc00::1"}[kind]
    done = attempt("ip", "route", "add", "192.0.2.0/32", "encap", *words.split(), "dev", "lo")
    if done.returncode != 0:
        pytest.skip(f"this kernel was built without the encapsulation {kind}")
    attempt("ip", "route", "del", "192.0.2.0/32")


def needs_connection_tracking() -> None:
    """Skip a test if the kernel was built without nftables' ``ct``."""
    rules = (
        "table ip6 t { chain c { type filter hook prerouting priority 0; ct state new counter; }; }"
    )
    done = attempt("nft", "--check", "--file", "-", stdin=rules)
    if done.returncode != 0:
        pytest.skip("this kernel was built without connection tracking in nftables")


NO_LINKS = "this kernel was built without links of the kind"
"""The reason to skip what ``./run kernels`` runs on other kernels, as no setup helps here."""


def needs_links(kind: str) -> None:
    """Skip a test if the kernel was built without a kind of links, such as ``bond``.

    Any other reason why the kernel adds no such link is an error. The calling thread needs a
    network namespace of its own, with an ``eth0``.
    """
    words = {"vlan": "link eth0 name probe type vlan id 9", "vrf": "probe type vrf table 9"}
    done = attempt("ip", "link", "add", *words.get(kind, f"probe type {kind}").split())
    # The kernel has tried to load a module of this kind (rtnl_newlink).
    if "Unknown device type" in done.stderr:
        pytest.skip(f"{NO_LINKS} {kind}")
    assert done.returncode == 0, done.stderr
    attempt("ip", "link", "del", "probe")
