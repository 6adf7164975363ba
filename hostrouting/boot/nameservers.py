"""Read a host's nameservers from resolv.conf."""

from __future__ import annotations

import contextlib
import re
from ipaddress import IPv4Address
from pathlib import Path

from hostrouting.boot.files import read_text
from hostrouting.boot.layout import Layout
from hostrouting.model.parsing import parse_address

# The address of systemd-resolved's own listener, systemd-resolved.service(8). Its other file names the servers to which
# it forwards queries.
_STUB = IPv4Address("127.0.0.53")


def nameservers(layout: Layout) -> tuple[IPv4Address, ...]:
    """Return the IPv4 nameservers of a host.

    If the only one is the stub of systemd-resolved, return those that systemd-resolved queries.

    Args:
        layout: the host's layout.

    Returns:
        The addresses in the file's order, without duplicates; none if the file doesn't exist.

    Raises:
        FileError: a file exists but can't be read.
    """
    named = _named(layout.resolv_conf)
    return _named(layout.resolved_conf) if named == (_STUB,) else named


def _named(path: Path) -> tuple[IPv4Address, ...]:
    # The keyword must be at the start of the line (res_init.c of glibc); text after the address is ignored.
    words = re.findall(r"^nameserver[ \t]+(\S+)", read_text(path) or "", re.MULTILINE)
    found: dict[IPv4Address, None] = {}
    for word in words:
        with contextlib.suppress(ValueError):  # an IPv6 address
            found[parse_address(word)] = None
    return tuple(found)
