"""Run the commands on a crowded host, one after the other, and find what they contradict."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from crowding import Built
from scripts import run_gate
from worlds.crowded import Crowded

from hostrouting import cli
from hostrouting.backend import read_routes
from hostrouting.model.routes import Protocol

_CODES = {"ok": 0, "overlap": 1, "unknown": 2}
_SECTIONS = ("routes", "rules", "keep")

# What other programs do on an installed host. IPv6 hosts fail at most of it, and go on.
_EVENTS = (
    "route del default",
    "route replace default via 10.1.0.254 dev eth0",
    "route add default via 10.2.0.1 dev eth1 metric 5",
    "route flush proto 217",
    "route add 172.16.5.0/24 dev ib0",
    "route add 172.16.5.0/24 dev ib1 metric 5",
    "route replace 172.16.0.0/17 via 10.1.0.9 dev eth0 proto static",
    "route replace default dev wg0 table 52",
    "route replace default dev wg0 table 51820",
    "rule add pref 40 to 172.16.0.0/17 prohibit",
    "rule add pref 5270 lookup 52",
    "rule add pref 2160 not fwmark 0xca6c lookup 51820",
    "rule add pref 2159 lookup main suppress_prefixlength 0",
    "rule del pref 2170",
    "addr del 172.16.0.10/16 dev ib0",
    "link set ib0 down",
    "link set eth1 down",
)


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


class _Session:
    """A host with a CONFIG, on which commands are run.

    Args:
        crowded: the host.
        root: a directory for its files.
    """

    def __init__(self, crowded: Crowded, root: Path) -> None:
        self.root = root
        self.built = Built(crowded, root / "host")
        self.is_strict = crowded.config.route_overlap.mode == "STRICT"
        self.config = root / "host/etc/aks-flex-node/config.json"
        self.config.parent.mkdir(parents=True)
        (root / "host/proc").symlink_to("/proc")
        self.config.write_text(json.dumps({"hostRouting": crowded.section}, indent=2))

    def run(self, *words: str) -> Said:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            code = cli.main([*words], host=self.built.host)
        return Said(code, out.getvalue())

    def json(self, *words: str) -> Said:
        return self.run(*words, "--output", "json")

    def check(self) -> Any:
        return self.json("check", str(self.config)).document

    @property
    def listed(self) -> dict[str, list[str]]:
        """Return the entries of CONFIG's file."""
        return _entries(json.loads(self.config.read_text()))

    def routes(self, *, of_others: bool) -> list[str]:
        """Return ours, or those of other programs, without what changes with a link's carrier."""
        return [
            f"{each.destination} {each.metric} {each.table} {each.devs or each.type}"
            for each in read_routes(self.built.backend)
            if (each.protocol != Protocol.HOSTROUTING) is of_others
            and each.protocol != Protocol.KERNEL
        ]


def contradictions(crowded: Crowded, root: Path) -> Iterator[str]:
    """Yield where commands contradict each other, or what then happens.

    The host is fixed by the pages' way, ``fix --in-place`` and ``apply``. Then other programs
    change it, and it is fixed again.
    """
    on = _Session(crowded, root)
    others = on.routes(of_others=True)
    yield from _about_one_state(on, "at first")
    if crowded.seed % 2:
        yield from _in_an_emergency(on)
    is_installed = yield from _fixed_and_applied(on, "at first")
    yield from _about_one_state(on, "after apply")
    if is_installed:
        yield from _again(on)
        chance = random.Random(f"events {crowded.seed}")
        on.built.run(chance.sample(_EVENTS, 2))
        others = on.routes(of_others=True)
        yield from _about_one_state(on, "after events")
        yield from _about_the_next_start(on)
        yield from _fixed_and_applied(on, "after events")
        yield from _about_one_state(on, "at last")
    if on.run("remove").code:
        yield "remove fails"
    if left := on.routes(of_others=False):
        yield f"remove leaves {left}"
    if on.routes(of_others=True) != others:
        yield f"routes of others were {others}, and are {on.routes(of_others=True)}"


def _in_an_emergency(on: _Session) -> Iterator[str]:
    """Run the commands of ``fix --format ip``, make their fix last, and delete what they added."""
    wanted = _entries(json.loads(on.run("fix", str(on.config)).out or "null"))
    printed = on.run("fix", str(on.config), "--format", "ip")
    on.built.run([line.split(" ", 2)[2] for line in printed.out.splitlines() if line[:2] == "ip"])
    report = on.check()
    if printed.code == 0 and report["verdict"] != "ok":
        yield f"after the printed commands: {report['verdict']} {_failing(report)}"
    yield from _about_one_state(on, "in an emergency")
    on.run("fix", "--in-place", str(on.config))
    if wanted and on.listed != wanted:
        yield f"in an emergency, fix wrote {on.listed} instead of {wanted}"
    on.built.run(["rule flush proto 216", "route flush table all proto 216"])


def _fixed_and_applied(on: _Session, when: str) -> Generator[str, None, bool]:
    """Fix CONFIG, and apply it.

    Returns:
        Whether ``apply`` succeeds.
    """
    printed = on.run("fix", str(on.config))
    before = on.listed
    fixed = on.run("fix", "--in-place", str(on.config))
    written = on.listed
    shown = _entries(json.loads(printed.out)) if printed.out.strip() else before
    if shown != written:
        yield f"{when}: fix printed {shown}, and wrote {written}"
    on.run("fix", "--in-place", str(on.config))
    if on.listed != written:
        yield f"{when}: the second fix wrote {on.listed} after {written}"
    planned = on.json("plan").document
    ours = on.routes(of_others=False)
    applied = on.json("apply")
    report = on.check()
    if fixed.code == 0 and (applied.code or report["verdict"] != "ok"):
        yield f"{when}: fix said that apply fixes all; {report['verdict']}, {applied.out[-900:]}"
    fails = bool(applied.code) and not applied.fails_by_check
    if planned["wouldFail"] is not fails:
        yield f"{when}: plan said {planned['warnings']}, and apply {applied.out[-900:]}"
    if fails and on.routes(of_others=False) != ours:
        yield f"{when}: an apply that failed left {on.routes(of_others=False)} instead of {ours}"
    return not applied.code


def _again(on: _Session) -> Iterator[str]:
    """Yield what is changed by commands that have nothing left to do."""
    applied = on.json("apply")
    if applied.code or applied.document["changed"]:
        yield f"apply again: {applied.out[:900]}"
    written = on.listed
    on.run("fix", "--in-place")
    if on.listed != written:
        yield f"fix again wrote {on.listed} after {written}"


def _about_one_state(on: _Session, when: str) -> Iterator[str]:
    """Yield contradictions between commands that only look."""
    report = on.check()
    verdict = report["verdict"]
    snapshot = on.root / "node.json"
    snapshot.write_text(on.run("snapshot").out)
    again = on.json("check", str(on.config), "--snapshot", str(snapshot)).document
    if (again["verdict"], _failing(again)) != (verdict, _failing(report)):
        yield f"{when}: {verdict} {_failing(report)}, of the snapshot {again}"
    (group,) = on.json("judge", str(on.config), str(snapshot)).document["groups"]
    if group["verdict"] != verdict:
        yield f"{when}: {verdict}, judge: {group['verdict']}"
    if (code := on.run("check", str(on.config)).code) != _CODES[verdict]:
        yield f"{when}: {verdict}, check ends with {code}"
    nagios = on.run("check", str(on.config), "--output", "nagios")
    codes = {"ok": (0, 1), "overlap": (2 if on.is_strict else 1,), "unknown": (3,)}[verdict]
    if nagios.code not in codes:
        yield f"{when}: {verdict}, nagios: {nagios}"


def _about_the_next_start(on: _Session) -> Iterator[str]:
    start = on.json("plan").document["nextStart"]
    done = run_gate(on.built.host, on.root / "gate")
    said = done.stdout + done.stderr
    # A host below another root has no Python, which the check's script asks about unusual hosts.
    is_unsure = "couldn't judge" in said and "check-failed" in said
    if not is_unsure and (done.returncode == 255) is start["admitted"]:
        yield f"the gate says {said}, and plan said {start}"


def _entries(document: Any) -> dict[str, list[str]]:
    if document is None:
        return {}
    static = document["hostRouting"].get("staticRoutes", {})
    return {key: sorted(map(json.dumps, static.get(key, ()))) for key in _SECTIONS}


def _failing(report: Any) -> list[str]:
    return sorted(f"{each['kind']} {each['cidr']} {each['devs']}" for each in report["findings"])
