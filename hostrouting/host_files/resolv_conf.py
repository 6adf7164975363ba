"""Read a host's nameservers."""

from __future__ import annotations

import contextlib
import re
from ipaddress import IPv4Address
from pathlib import Path

from hostrouting.boot.files import read_text
from hostrouting.boot.layout import Layout
from hostrouting.model.family import IpAddress
from hostrouting.model.parsing import parse_address

# The stub listener of systemd-resolved.service(8); layout.resolved_conf lists the servers that the
# stub queries.
_STUB = IPv4Address("127.0.0.53")


def nameservers(layout: Layout) -> tuple[IpAddress, ...]:
    """Return a host's IPv4 nameservers.

    If the only IPv4 nameserver is systemd-resolved's stub, return the servers that the stub
    queries.

    Returns:
        The unique addresses in file order, or an empty tuple if the file doesn't exist.

    Raises:
        FileError: a file exists but can't be read.
    """
    named = _named(layout.resolv_conf)
    return _named(layout.resolved_conf) if named == (_STUB,) else named


def _named(path: Path) -> tuple[IpAddress, ...]:
    # In glibc's res_init.c, the keyword must be at the start of the line, and the rest of the line
    # after the address is ignored.
    words = re.findall(r"^nameserver[ \t]+(\S+)", read_text(path) or "", re.MULTILINE)
    addresses: dict[IpAddress, None] = {}
    for word in words:
        with contextlib.suppress(ValueError):  # an IPv6 address
            addresses[parse_address(word)] = None
    return tuple(addresses)
