"""The nameservers of a host, as resolv.conf names them."""

from __future__ import annotations

import contextlib
import re
from ipaddress import IPv4Address
from pathlib import Path

from hostrouting.boot.files import read_text
from hostrouting.boot.layout import Layout
from hostrouting.model.parsing import parse_address

# systemd-resolved.service(8): its own listener, which passes on to what its other file names.
_STUB = IPv4Address("127.0.0.53")


def nameservers(layout: Layout) -> tuple[IPv4Address, ...]:
    """Return the IPv4 nameservers that a host asks; behind systemd-resolved's stub, those that it asks in turn.

    Args:
        layout: of the host.

    Returns:
        The addresses in the order of the file, each once; none if there is no such file.

    Raises:
        FileError: a file is there and can't be read.
    """
    named = _named(layout.resolv_conf)
    return _named(layout.resolved_conf) if named == (_STUB,) else named


def _named(path: Path) -> tuple[IPv4Address, ...]:
    # The keyword starts the line (res_init.c of glibc); what comes after the address doesn't count.
    words = re.findall(r"^nameserver[ \t]+(\S+)", read_text(path) or "", re.MULTILINE)
    found: dict[IPv4Address, None] = {}
    for word in words:
        with contextlib.suppress(ValueError):  # an IPv6 one
            found[parse_address(word)] = None
    return tuple(found)
