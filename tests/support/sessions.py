"""A crowded host with a CONFIG, on which commands are run."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from crowding import Built
from node import tool
from scripts import Sandbox
from worlds.crowded import Crowded, in_family

from hostrouting import Host, Layout, cli
from hostrouting.backend import read_routes
from hostrouting.model.errors import UnitError
from hostrouting.model.routes import Protocol
from hostrouting.testing import FakeSystemd

_SECTIONS = ("routes", "rules", "keep")


class Said(NamedTuple):
    """The end and output of a command.

    Args:
        code: its exit code.
        out: its output.
    """

    code: int
    out: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def fails_by_check(self) -> bool:
        """Return whether all was installed, and the check then failed in STRICT mode."""
        report = self.document.get("overlap")
        return report is not None and report["verdict"] != "ok"


class _Systemd(FakeSystemd):
    """A fake that ends a trial by the real script, which sees a copy of the host's files.

    Args:
        layout: the host's files.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self._of_host = layout

    def restart(self, unit: str) -> None:
        super().restart(unit)
        layout = self._of_host
        if unit != "hostrouting-trial.service" or not layout.trial.exists():
            return
        sandbox = Sandbox(Path(tempfile.mkdtemp(dir=layout.root.parent)))
        run = sandbox.root / "run"
        shutil.copytree(layout.run_dir, run / layout.run_dir.name)
        lines = ["rm -rf /etc/aks-flex-node", f"cp -a {layout.root}/etc/aks-flex-node /etc"]
        text = layout.trial_script.read_text()
        done = sandbox.run(text, "gate", etc=True, prepare="\n".join(lines))
        if not (run / layout.run_dir.name / layout.trial.name).exists():
            layout.trial.unlink()
        if done.returncode:
            raise UnitError(f"can't restart {unit}: {done.stderr}")


class Session:
    """A host with a CONFIG, on which commands are run.

    Args:
        crowded: the host.
        root: a directory for its files.
    """

    def __init__(self, crowded: Crowded, root: Path) -> None:
        self.root = root
        self.built = Built(crowded, root / "host")
        layout = self.built.host.layout
        units = _Systemd(layout)
        self.built.host = Host(self.built.kernel, units, layout, self.built.kernel6)
        self.config = root / "host/etc/aks-flex-node/config.json"
        self.config.parent.mkdir(parents=True)
        (root / "host/proc").symlink_to("/proc")
        self.config.write_text(json.dumps({"hostRouting": crowded.section}, indent=2))

    def run(self, *words: str) -> Said:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            code = cli.main([*words], host=self.built.host)
        return Said(code, out.getvalue())

    def ip(self, steps: Sequence[str]) -> None:
        """Run lines for ``ip -batch``, with the addresses of the host's family."""
        self.built.run([in_family(step, self.built.crowded.family) for step in steps])

    def json(self, *words: str) -> Said:
        return self.run(*words, "--output", "json")

    def check(self) -> Any:
        return self.json("check", str(self.config)).document

    def snapshot(self, name: str) -> Path:
        """Write a snapshot of the host, and return its path."""
        path = self.root / f"{name}.json"
        path.write_text(self.run("snapshot").out)
        return path

    @property
    def shown(self) -> list[str]:
        """Return what ``ip`` shows."""
        family = f"-{self.built.crowded.family.value}"
        things = ("link", "address", "rule", "route show table all")
        shown = [tool("ip", family, "-o", *each.split()) for each in things]
        return sorted(line for text in shown for line in text.splitlines())

    def new_folder(self, name: str) -> Path:
        """Return the path of a folder that doesn't exist yet."""
        return next(path for n in count() if not (path := self.root / f"{name}{n}").exists())

    @property
    def is_installed(self) -> bool:
        return self.built.host.layout.manifest.exists()

    @property
    def has_gate(self) -> bool:
        return (self.root / "host/etc/hostrouting/gate.list").exists()

    @property
    def is_trying(self) -> bool:
        """Return whether a trial is in progress."""
        return self.built.host.layout.trial.exists()

    def end_trial(self) -> str:
        """Do what systemd does when a trial's time is over, and return why it fails."""
        try:
            self.built.host.units.restart("hostrouting-trial.service")
        except UnitError as error:
            return str(error)
        return ""

    @property
    def state(self) -> object:
        """Return what commands change: CONFIG, files and routes."""
        etc = self.root / "host/etc"
        files = {path: path.read_bytes() for path in etc.rglob("*") if path.is_file()}
        return files, self.routes(of_others=False), self.is_trying

    @property
    def is_strict(self) -> bool:
        document = json.loads(self.config.read_text())
        return bool(document["hostRouting"]["routeOverlap"].get("mode") == "STRICT")

    @property
    def listed(self) -> dict[str, list[str]]:
        """Return the entries of CONFIG's file."""
        return entries_of(json.loads(self.config.read_text()))

    @property
    def ours(self) -> list[str]:
        """Return our routes as arguments for ``ip route del``."""
        return [
            str(each)
            for each in read_routes(self.built.backend)
            if each.protocol == Protocol.HOSTROUTING
        ]

    def routes(self, *, of_others: bool) -> list[str]:
        """Return ours, or those of other programs, without what changes with a link's carrier."""
        return [
            f"{each.destination} {each.metric} {each.table} {each.devs or each.type}"
            for each in read_routes(self.built.backend)
            if (each.protocol != Protocol.HOSTROUTING) is of_others
            and each.protocol != Protocol.KERNEL
        ]


def entries_of(document: Any) -> dict[str, list[str]]:
    """Return what a document's staticRoutes list."""
    if document is None:
        return {}
    static = document["hostRouting"].get("staticRoutes", {})
    return {key: sorted(map(json.dumps, static.get(key, ()))) for key in _SECTIONS}


def cidr_of(expected: Any) -> str:
    """Return the CIDR of an item of expectedCidrs."""
    return str(expected["cidr"] if isinstance(expected, dict) else expected)
