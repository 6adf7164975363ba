"""Ask a crowded host's commands that only look, and find what they contradict."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_network
from itertools import islice
from pathlib import Path
from typing import Any

from scripts import run_gate
from sessions import Session

_CODES = {"ok": 0, "overlap": 1, "unknown": 2}
_OF_PLAN = {"route-missing", "route-differs", "route-left", "rule-missing", "rule-left"}
_COMPARED = ("verdict", "installed", "routes", "files", "modes")


def about_one_state(on: Session, when: str) -> Iterator[str]:
    """Yield contradictions between commands that only look."""
    report = on.check()
    verdict = report["verdict"]
    snapshot = str(on.snapshot("node"))
    again = on.json("check", str(on.config), "--snapshot", snapshot).document
    if (again["verdict"], failing(again)) != (verdict, failing(report)):
        yield f"{when}: {verdict} {failing(report)}, of the snapshot {again}"
    if when.startswith("at "):  # it takes as long as all others
        (group,) = on.json("judge", str(on.config), snapshot).document["groups"]
        if group["verdict"] != verdict:
            yield f"{when}: {verdict}, judge: {group['verdict']}"
    said = on.run("check", str(on.config))
    if said.code != _CODES[verdict] or not said.out.startswith(verdict):
        yield f"{when}: {verdict}, check says {said}"
    nagios = on.run("check", str(on.config), "--output", "nagios")
    codes = {"ok": (0, 1), "overlap": (2 if on.is_strict else 1,), "unknown": (3,)}[verdict]
    if nagios.code not in codes:
        yield f"{when}: {verdict}, nagios: {nagios}"
    yield from _about_addresses(on, report, when)
    yield from _about_the_fix(on, report, when)
    yield from _about_each_failure(report, when)
    yield from _about_plans(on, snapshot, when)


def _about_the_fix(on: Session, report: Any, when: str) -> Iterator[str]:
    """Yield where ``fix`` contradicts the check."""
    said = on.json("fix", str(on.config))
    if when == "in an emergency" or "error" in said.document:  # what it printed counts as gone
        return
    plan = on.json("plan").document
    if plan.get("routes") or plan.get("rules"):  # what apply removes counts as gone, too
        return
    fix = said.document["fix"]
    checked = said.document["overlap"]
    for key in ("verdict", "reason", "unfixable", "hints", "unapplied", "unlisted", "keep"):
        there = checked[key]
        if there != report[key]:
            yield f"{when}: check has {key} {report[key]}, and fix {there}"
    unfixable = [each["ranges"] for each in report["unfixable"]]
    if fix and [each["ranges"] for each in fix["unfixable"]] != unfixable:
        yield f"{when}: check can't fix {unfixable}, and fix says {fix['unfixable']}"
    codes = {"ok": (0, 1), "unknown": (2,), "overlap": (1,) if unfixable else (0, 1)}
    if said.code not in codes[report["verdict"]]:
        yield f"{when}: {report['verdict']} {unfixable}, and fix ends with {said.code}"


def _about_each_failure(report: Any, when: str) -> Iterator[str]:
    """Yield the failing ranges with neither a fix nor a reason."""
    if report["unapplied"] is not None:
        return
    told = [ip_network(part) for each in report["unfixable"] for part in each["ranges"]]
    for finding in report["findings"]:
        parts = [] if finding["fix"] or finding["rules"] else finding["ranges"]
        left = [part for part in parts if not any(map(ip_network(part).overlaps, told))]
        if left:
            yield f"{when}: neither a fix nor a reason for {left}, but {report['unfixable']}"


def _about_addresses(on: Session, report: Any, when: str) -> Iterator[str]:
    """Yield where ``explain`` contradicts the check."""
    ranges = [(each, text) for each in report["findings"] for text in each["ranges"]]
    for finding, text in islice(ranges, 2):
        said = on.json("explain", str(ip_network(text)[0]), str(on.config))
        if said.document["isAsExpected"] or said.code != _CODES[report["verdict"]]:
            yield f"{when}: {finding['message']}, but explain {said.code} {said.out[:900]}"


def _about_plans(on: Session, snapshot: str, when: str) -> Iterator[str]:
    """Yield where the plan of a snapshot contradicts the host's."""
    if on.is_trying:
        return
    plan = on.json("plan").document
    again = on.json("plan", "--snapshot", snapshot).document
    if "error" in plan:
        return
    for key in ("routes", "rules", "wouldFail"):
        if plan[key] != again[key]:
            yield f"{when}: plan's {key} are {plan[key]}, of the snapshot {again[key]}"


# --- the doctor -----------------------------------------------------------------------------------


def about_the_doctor(on: Session, when: str) -> Iterator[str]:
    """Yield where the doctor contradicts the check of what is installed, or a plan."""
    doctor = on.json("doctor")
    text = on.run("doctor")
    if text.code != doctor.code:
        yield f"{when}: doctor ends with {text.code} and {doctor.code}"
    if not on.is_installed or on.is_trying:
        return
    found = {name: [*of(doctor, name)] for name in _COMPARED}
    installed = on.json("check").document
    if "error" in installed:
        if not doctor.code or "installed.json" not in installed["error"]:
            yield f"{when}: {installed}, and doctor ends with {doctor.code}"
        return
    verdict = installed["verdict"]
    kinds = {each["kind"] for each in found["verdict"]}
    is_known = not installed["reason"] or not installed["reason"].startswith("nothing-expected")
    if is_known and verdict != "ok" and not kinds & {"shadowed", "unjudged"}:
        yield f"{when}: {verdict} {installed['reason']}, and the doctor {found['verdict']}"
    if verdict == "ok" and kinds & {"shadowed", "unjudged"}:
        yield f"{when}: {verdict}, and the doctor {found['verdict']}"
    plan = on.json("plan").document
    if "error" in plan or found["installed"]:
        return
    changes = [*plan["routes"], *plan["rules"]]
    kinds = {each["kind"] for each in found["routes"]}
    if (changes and not kinds) or (kinds & _OF_PLAN and not changes):
        yield f"{when}: plan has {changes}, and the doctor {found['routes']}"
    if bool(plan["files"]) and not any(found[name] for name in ("files", "modes", "verdict")):
        yield f"{when}: plan has {plan['files']}, and the doctor has no finding"


def of(doctor: Any, name: str) -> Iterator[Any]:
    return (each for each in doctor.document["findings"] if each["check"] == name)


def about_the_next_start(on: Session, when: str) -> Iterator[str]:
    """Run the installed gate, and yield what the doctor and the plan said wrongly about it."""
    if not on.is_installed or on.is_trying or not on.has_gate:
        return
    plan = on.json("plan").document
    doctor = on.json("doctor")
    findings = [each for name in ("verdict", "routes") for each in of(doctor, name)]
    held = [each["message"] for each in findings if _HELD.search(each["message"])]
    let = [each["message"] for each in findings if _LET.search(each["message"])]
    is_as_installed = "error" not in plan and not plan["files"]
    is_held, said = _gate(on)
    if is_held is None:
        return
    if is_held is (plan.get("nextStart") or {}).get("admitted") and is_as_installed:
        yield f"{when}: the gate says {said}, and plan said {plan['nextStart']}"
    if is_as_installed and not is_held and held:
        yield f"{when}: the gate lets through: {said}, and the doctor said {held}"
    if is_as_installed and is_held and (let or not held):
        yield f"{when}: the gate holds: {said}, and the doctor said {findings}"


def about_the_start_after_apply(on: Session, start: Any, when: str) -> Iterator[str]:
    """Run the gate that ``apply`` has installed, and compare it with what was planned."""
    if not on.has_gate or start is None:
        return
    is_held, said = _gate(on)
    if is_held is not None and is_held is start["admitted"]:
        yield f"{when}: the gate says {said}, and plan said {start}"


def _gate(on: Session) -> tuple[bool | None, str]:
    """Return whether the gate holds, or None if it would ask Python, and what it says."""
    done = run_gate(on.built.host, on.new_folder("gate"))
    said = done.stdout + done.stderr
    # A host below another root has no Python, which the check's script asks about unusual hosts.
    is_unsure = "couldn't judge" in said and "check-failed" in said
    return (None if is_unsure else done.returncode == 255), said


_HELD = re.compile(r"next start is held back|gate holds each start")
_LET = re.compile(r"next start is let through")


# --- the difference -------------------------------------------------------------------------------


def about_the_change(on: Session, before: Path, shown: list[str], when: str) -> Iterator[str]:
    """Yield where ``diff`` contradicts what ``ip`` shows, or the host that is now."""
    after = on.snapshot("after")
    said = on.json("diff", str(before), str(after))
    report = said.document
    if "error" in report:
        if "installed.json" not in report["error"] or not report["hint"]:
            yield f"{when}: diff fails: {report}"
        return
    if said.code != {False: 0, True: 1, None: 2}[report["differs"]]:
        yield f"{when}: diff ends with {said.code}: {report['differs']}"
    changes = [
        *report["others"],
        *(cause for each in report["changed"] for cause in each["causes"]),
    ]
    differs = sorted({*shown}.symmetric_difference(on.shown))
    if bool(changes) is not bool(differs):
        yield f"{when}: ip shows {differs}, and diff {changes}"
    now = on.json("diff", str(before)).document
    keys = ("differs", "changed", "others")
    if any(now[key] != report[key] for key in keys):
        yield f"{when}: diff says {report}, and of the host {now}"
    back = on.json("diff", str(after), str(before)).document
    if back["differs"] is not report["differs"]:
        yield f"{when}: diff says {report}, and backwards {back}"
    same = on.json("diff", str(after), str(after)).document
    if same["differs"] is not False or same["others"]:
        yield f"{when}: diff of one snapshot says {same}"


def failing(report: Any) -> list[str]:
    """Return the failures of a report."""
    return sorted(f"{each['kind']} {each['cidr']} {each['devs']}" for each in report["findings"])
