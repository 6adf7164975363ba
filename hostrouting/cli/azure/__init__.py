"""The neighbours at the command line: their own words, and what other commands get from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.cli.options import read_section

if TYPE_CHECKING:
    import argparse

    from hostrouting.azure.config import HostNetworking
    from hostrouting.boot.host import Host


def load_networking(options: argparse.Namespace, host: Host, *, quietly: bool = False) -> HostNetworking:
    """What CONFIG says of the neighbours of host routing; quietly: it needn't say anything."""
    from hostrouting.azure import config

    section = None if quietly else config.SECTION
    return read_section(options, host, section, config.HostNetworking.from_mapping)[1]
