"""Do what is advised after ``fix --format ip`` on a crowded host, and find what that undoes."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from looking import failing
from node import attempt
from reaching import Ways
from sessions import Session, cidr_of

from hostrouting.routes.printed import BESIDE, read_printed

_HINT = re.compile(rf"(?:to make it last|{re.escape(BESIDE)}): (.*)")
_SHOWN = 3
_FLUSH = ["rule flush proto 216", "route flush table all proto 216"]


def outlasted(on: Session) -> Iterator[str]:
    """Run the commands of ``fix --format ip``, then literally the hint that makes them last.

    CONFIG, the routes and what is installed are as before afterwards.
    """
    text = on.config.read_text()
    chance = random.Random(f"emergency {on.built.crowded.seed}")
    case = chance.choice((_given, _installed, _with_another_cidr, _of_another_default))
    fix, judged = case(on)
    for line in _outlasted(on, fix, judged, chance):
        yield f"in an emergency ({case.__name__}), {line}"
    on.run("remove")
    on.built.run(_FLUSH)
    on.config.write_text(text)


def _outlasted(
    on: Session, fix: list[str], judged: list[str], chance: random.Random
) -> Iterator[str]:
    asked = on.built.packets([])
    before = on.built.ways(asked)
    printed = on.run("fix", *fix, "--format", "ip").out
    on.built.run([line.split(" ", 2)[2] for line in printed.splitlines() if line[:2] == "ip"])
    if not read_printed([on.built.backend]):
        return
    during = on.built.ways(asked)
    report = on.json("check", *judged).document
    hints = [*_hints(on, judged)]
    if not hints:
        if report.get("verdict") not in (None, "unknown"):
            yield f"nothing says how {printed} lasts: {on.run('check', *judged).out}"
        return
    hint = chance.choice(hints)
    failed = _typed(on, hint)
    told = f"{hint} {f'fails ({failed})' if failed else 'succeeds'}"
    if lost := [*_lost(before, during, on.built.ways(asked))]:
        yield f"{told}: {len(lost)} lost, {lost[:_SHOWN]}"
    if not failed and (left := read_printed([on.built.backend])):
        yield f"{told}: leaves {left}"
    now = on.json("check", *judged).document
    if report["verdict"] == "ok" and now.get("verdict") != "ok":
        yield f"{told}: {now.get('verdict')} {failing(now)}"


def _given(on: Session) -> tuple[list[str], list[str]]:
    """Return the arguments of ``fix`` and of ``check`` for a host without an installation."""
    return [str(on.config)], [str(on.config)]


def _installed(on: Session) -> tuple[list[str], list[str]]:
    """Install CONFIG as it is, and return arguments as above."""
    on.run("apply", str(on.config))
    return [], []


def _with_another_cidr(on: Session) -> tuple[list[str], list[str]]:
    """Take a CIDR out of CONFIG, install it, and return arguments as above."""
    document = json.loads(on.config.read_text())
    section = document["hostRouting"]
    taken = section["routeOverlap"]["expectedCidrs"].pop()
    uplink = section.pop("uplinks", ["eth0"])[0]
    on.config.write_text(json.dumps(document))
    on.run("apply", str(on.config))
    return ["--cidr", cidr_of(taken), "--uplink", uplink], [str(on.config)]


def _of_another_default(on: Session) -> tuple[list[str], list[str]]:
    """Install CONFIG, write another one to its path, and return arguments as above."""
    on.run("apply", str(on.config))
    overlap = {"expectedCidrs": ["203.0.113.0/24"]}
    on.config.write_text(json.dumps({"hostRouting": {"routeOverlap": overlap}}))
    return [], []


def _hints(on: Session, judged: list[str]) -> Iterator[str]:
    """Yield the commands with which the check and the doctor make last what was printed."""
    yield from _HINT.findall(on.run("check", *judged).out)
    for each in on.json("doctor", *judged).document.get("findings", ()):
        if each["kind"] == "not-lasting" and "; " not in each["hint"]:
            yield each["hint"].removeprefix("to make it last: ")


def _typed(on: Session, line: str) -> str:
    """Run commands joined by ``&&``, and return the one that fails, or an empty string."""
    here = Path.cwd()
    os.chdir(on.root)
    try:
        for command in line.split(" && "):
            name, *words = shlex.split(command)
            own = name == "hostrouting"
            if (on.run(*words).code if own else attempt(name, *words).returncode) != 0:
                return command
        return ""
    finally:
        os.chdir(here)


def _lost(before: Ways, during: Ways, after: Ways) -> Iterator[str]:
    """Yield how packets go that the printed commands had led elsewhere, if it is elsewhere now."""
    for packet, way in during.items():
        was, now = before[packet], after[packet]
        if (was.dev, was.error) != (way.dev, way.error) and now.dev != way.dev:
            yield f"{packet} went {was}, then {way}, now {now}"
