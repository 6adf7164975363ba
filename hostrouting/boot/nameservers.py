"""Read a host's nameservers from resolv.conf."""

from __future__ import annotations

import contextlib
import re
from ipaddress import IPv4Address
from pathlib import Path

from hostrouting.boot.files import read_text
from hostrouting.boot.layout import Layout
from hostrouting.model.parsing import parse_address

# systemd-resolved.service(8): its own listener, which forwards to the servers in its other file.
_STUB = IPv4Address("127.0.0.53")


def nameservers(layout: Layout) -> tuple[IPv4Address, ...]:
    """Return the IPv4 nameservers of a host; behind systemd-resolved's stub, those that resolved queries.

    Args:
        layout: the host's layout.

    Returns:
        The addresses in the file's order, without duplicates; none if there is no such file.

    Raises:
        FileError: a file exists and can't be read.
    """
    named = _named(layout.resolv_conf)
    return _named(layout.resolved_conf) if named == (_STUB,) else named


def _named(path: Path) -> tuple[IPv4Address, ...]:
    # The keyword starts the line (res_init.c of glibc); text after the address doesn't count.
    words = re.findall(r"^nameserver[ \t]+(\S+)", read_text(path) or "", re.MULTILINE)
    found: dict[IPv4Address, None] = {}
    for word in words:
        with contextlib.suppress(ValueError):  # an IPv6 address
            found[parse_address(word)] = None
    return tuple(found)
