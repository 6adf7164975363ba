"""What a check says of a host, live or recorded."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import phases
from hostrouting import Config, ExpectedCidr
from hostrouting.kernel.recording import take_snapshot
from hostrouting.kernel.snapshot import Snapshot
from hostrouting.overlap.check import check_overlap

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ipaddress import IPv4Network

    from hostrouting import OverlapReport
    from hostrouting.backend import RouteBackend

PAGE = (Path(__file__).parent.parent.parent / "docs/howto/recordings.md").read_text()
(_BY_HAND,) = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
BY_HAND = _BY_HAND.replace("sleep 1", "sleep 0.1")
"""The commands that record a host with ip alone; a hand isn't as fast."""


# Of ip: one that prints all that a rule may select by, and, to re.sub, its own.
KNOWS_ALL, AS_IT_IS = "iproute2-9999.0", r"\g<0>"


def checked(
    backend: RouteBackend,
    expected: Sequence[ExpectedCidr | IPv4Network],
    allowed: Sequence[str] = (),
    foreseen: Sequence[IPv4Network] = (),
) -> tuple[Config, OverlapReport]:
    """The config that asks for this, and what its check says."""
    overlap = {
        "expectedCidrs": [each.to_mapping() if isinstance(each, ExpectedCidr) else str(each) for each in expected],
        "allowedDevs": list(allowed),
        "foreseen": [str(prefix) for prefix in foreseen],
    }
    config = Config.from_mapping({"hostRouting": {"routeOverlap": overlap, "waitSeconds": 0}})
    return config, check_overlap(config, backend, phases.CancelScope())


def recorded(kernel: RouteBackend) -> Snapshot:
    """What ``hostrouting snapshot`` records, written and read."""
    with TemporaryDirectory() as root:
        path = Path(root) / "node.json"
        path.write_text(take_snapshot(kernel).to_text())
        return Snapshot.load(path)


def recorded_by(commands: str, shell: str = "sh", *, ip: str = KNOWS_ALL) -> Snapshot:
    """Return what commands of a shell record of the host that they run on; once more if it changed meanwhile.

    Links that were just made tell of their carriers up to a second later. Commands that change the host run once.

    Args:
        commands: of the shell.
        shell: its name.
        ip: the release to put in the place of ip's own.
    """
    found = _record(commands, shell, ip)
    return _record(commands, shell, ip) if found.is_torn and commands == BY_HAND else found


def _record(commands: str, shell: str, ip: str) -> Snapshot:
    with TemporaryDirectory() as folder:
        done = subprocess.run([shell, "-euc", commands], cwd=folder, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        path = Path(folder) / "node.json"
        path.write_text(re.sub(r"iproute2-[0-9.]+", ip, path.read_text()))
        return Snapshot.load(path)
