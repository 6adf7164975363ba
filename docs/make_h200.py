"""Write the picture of docs/howto/h200.md:  ./run python docs/make_h200.py [DIR]."""

from __future__ import annotations

import datetime
import sys
from ipaddress import IPv4Address
from pathlib import Path

import attrs

import phases
from hostrouting import Config
from hostrouting.backend import Write
from hostrouting.cli.report import overlap_picture
from hostrouting.model.jsonable import rfc_3339
from hostrouting.model.routes import DEFAULT_DESTINATION, NextHop, Protocol, Route
from hostrouting.overlap.check import check_overlap
from hostrouting.testing import FakeKernel

FOLDER = Path(__file__).parent / "howto"
TIME = datetime.datetime(2026, 11, 20, 9, 0, tzinfo=datetime.timezone.utc).timestamp()


def picture() -> str:
    """Return the SVG output of a check of a CIDR of which InfiniBand shadows a part."""
    kernel = FakeKernel()
    kernel.add_link("eth0")
    kernel.add_address("eth0", "10.1.0.4/24")
    for number in range(8):
        kernel.add_link(f"ib{number}")
        kernel.add_address(f"ib{number}", f"172.16.0.{10 + number}/16")
    hop = NextHop("eth0", IPv4Address("10.1.0.1"))
    default = Route(DEFAULT_DESTINATION, (hop,), protocol=Protocol.DHCP)
    assert kernel.write(Write.ADD, [default]) == ()
    config = Config(route_overlap={"expectedCidrs": ["172.16.0.0/12"]})
    report = check_overlap(config, kernel, phases.CancelScope())
    return overlap_picture(attrs.evolve(report, host="node-7", time=rfc_3339(TIME)))


def main(folder: Path = FOLDER) -> None:
    """Write the picture."""
    (folder / "h200.svg").write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
