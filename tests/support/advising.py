"""Do what the commands advise on a crowded host, and find what the advice doesn't settle."""

from __future__ import annotations

import json
import random
import re
import shlex
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any

from sessions import Session, cidr_of

_ADVICES = 3
_APPLY_OR_FIX = re.compile(r"hostrouting (?:apply|fix --in-place|confirm|revert)\b(?: /[^\s;,]+)?")
_HALVES = re.compile(
    r"remove (?P<whole>\S+) from hostRouting\.staticRoutes\.routes and name its halves instead, "
    r"(?P<first>\S+) and (?P<second>[^\s,;]+)"
)
_TOLD_APART = re.compile(
    r"(hostrouting config set .*|hostrouting apply(?: /\S+)?)(?=$|;|,| installs)"
)
# The host has no unit of the consumer, and the doctor asks about this machine.
_OF_UNITS = frozenset(
    ("consumer", "modes", "restart", "ordering", "tools", "networkd", "networkmanager")
)


def advised(on: Session, when: str) -> Iterator[str]:
    """Do what the doctor and the check advise, and yield advice that goes round in a circle."""
    done: list[str] = []
    for _ in range(_ADVICES):
        told = [*_advice(on)]
        if not told:
            return
        command, why = told[0]
        done.append(command)
        state = on.state
        ended = on.run(*shlex.split(command)[1:])
        # A command that fails says why itself.
        if not ended.code and on.state == state and [*_advice(on)] == told:
            yield f"{when}: {command} ends with {ended.code}, and leaves {why}"
            return
    if not ended.code and (told := [*_advice(on)]):
        yield f"{when}: after {done}, this is advised: {told[0]}"


def _advice(on: Session) -> Iterator[tuple[str, str]]:
    """Yield each command that is advised, with the text that it is in."""
    for each in _broken(on):
        if command := _command_in(each["hint"]):
            yield command, str(each)
    for line in on.run("check").out.splitlines():
        if command := _command_in(line):
            yield command, line


def halved(on: Session, when: str) -> Iterator[str]:
    """Name the halves of a route instead of it, if a hint says so, and yield why that fails."""
    warnings = on.json("plan").document.get("warnings", ())
    found = next(filter(None, map(_HALVES.search, warnings)), None)
    if found is None:
        return
    document = json.loads(on.config.read_text())
    routes = document["hostRouting"]["staticRoutes"]["routes"]
    old = next(each for each in routes if each["destination"] == found["whole"])
    halves = [{**old, "destination": found[name]} for name in ("first", "second")]
    routes[:] = [each for each in routes if each != old] + halves
    on.config.write_text(json.dumps(document, indent=2))
    plan = on.json("plan").document
    if "error" in plan or any(found["whole"] in line for line in plan["warnings"]):
        yield f"{when}: after {found[0]}, plan says {plan.get('error') or plan['warnings']}"


def told_apart(on: Session, chance: random.Random, when: str) -> Iterator[str]:
    """Do a thing that the doctor advises where CONFIG isn't what is installed, or files differ."""
    findings = [*_broken(on)]
    lines = [
        (each["kind"], found[1])
        for each in findings
        if each["kind"] == "another-config" or each["check"] == "files"
        for line in each["hint"].splitlines()
        if (found := _TOLD_APART.search(line))
    ]
    if not lines:
        return
    kind, command = chance.choice(lines)
    ended = on.run(*shlex.split(command)[1:])
    left = [each for each in _broken(on) if each["kind"] == kind]
    if left and not ended.code:
        yield f"{when}: {command} ends with {ended.code}, and leaves {left}"


def _broken(on: Session) -> Iterator[Any]:
    """Yield what the doctor finds broken, without what belongs to this machine."""
    for each in on.json("doctor").document["findings"]:
        if each["check"] not in _OF_UNITS and each["severity"] != "risk":
            yield each


def _command_in(hint: str) -> str:
    line = hint.partition("\n")[0]
    # Before "then", something is left to a person.
    found = None if "then" in line else _APPLY_OR_FIX.search(line)
    return str(found[0]) if found else ""


def answered(on: Session, chance: random.Random, when: str) -> Iterator[str]:
    """Give an answer that the check offers, fix and apply; yield what it then doesn't settle."""
    asked = [each for each in on.check()["unfixable"] if each["answers"]]
    if not asked:
        return
    each = chance.choice(asked)
    answer = chance.choice(each["answers"])
    document = json.loads(on.config.read_text())
    section = document["hostRouting"]
    for more in answer.get("expectedCidrs", ()):
        overlap = section["routeOverlap"]
        named = ip_network(more["cidr"])
        expected = overlap["expectedCidrs"]
        others = [cidr for cidr in expected if ip_network(cidr_of(cidr)) != named]
        overlap["expectedCidrs"] = [*others, more]
    if "uplinks" in answer:
        section["uplinks"] = answer["uplinks"]
    on.config.write_text(json.dumps(document, indent=2))
    clauses = [
        clause
        for clause in re.split(r"; (?=if |expect |set )", each["reason"])
        if all(json.dumps(value) in clause for value in answer.get("expectedCidrs", ()))
        and json.dumps(answer.get("uplinks", "")) in clause
    ]
    fixed = on.run("fix", "--in-place", str(on.config))
    applied = on.json("apply", str(on.config))
    report = on.check()
    left = [
        text
        for finding in report["findings"]
        for text in finding["ranges"]
        if any(ip_network(text).overlaps(ip_network(part)) for part in each["ranges"])
    ]
    is_told = any("fail" in clause for clause in clauses)
    if (left or report["verdict"] == "unknown") and not is_told:
        yield (
            f"{when}: the answer {answer} ends with fix {fixed.code}, apply {applied.code} "
            f"{report['verdict']} {report['reason']} {left}, and was told as {each['reason']}"
        )
