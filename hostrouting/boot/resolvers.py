"""The nameservers that a host asks."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from hostrouting.model.errors import FileError
from hostrouting.model.parsing import parse_address

if TYPE_CHECKING:
    from pathlib import Path

    from hostrouting.boot.layout import Layout

__all__ = ["nameservers"]

# systemd-resolved.service(8): its own listener, which passes on to what its other file names.
_STUB = IPv4Address("127.0.0.53")


def nameservers(layout: Layout) -> tuple[IPv4Address, ...]:
    """The IPv4 nameservers that a host asks; behind systemd-resolved's stub, those that it asks in turn.

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
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise FileError.of(f"read {path}", error) from error
    found = []
    for line in lines:
        # The keyword starts the line (res_init.c of glibc); what comes after the address doesn't count.
        words = line.split()
        if line.startswith("nameserver") and words[0] == "nameserver" and len(words) > 1:
            found += _ipv4(words[1])
    return tuple(dict.fromkeys(found))


def _ipv4(text: str) -> list[IPv4Address]:
    try:
        return [parse_address(text)]
    except ValueError:
        return []  # an IPv6 one
