"""Run the commands on a crowded host, one after the other, and find what they contradict."""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from advising import advised, answered, halved, told_apart
from crowding import Built
from harms import Before, Printed, told_by
from looking import (
    about_one_state,
    about_the_change,
    about_the_doctor,
    about_the_next_start,
    about_the_start_after_apply,
    failing,
)
from meddling import meddle
from nightly import by_day
from outlasting import outlasted
from sessions import Session, entries_of
from worlds.crowded import Crowded

from hostrouting import Config, OverlapReport, check

_ROUNDS = by_day(1, by_night=3)


def contradictions(crowded: Crowded, root: Path) -> Iterator[str]:
    """Yield where commands contradict each other, or what then happens.

    The host is fixed by the pages' way, ``fix --in-place`` and ``apply``. Then other programs and
    operators change it, and it is fixed again, some times.
    """
    on = Session(crowded, root)
    others = on.routes(of_others=True)
    yield from about_one_state(on, "at first")
    if crowded.seed % 2:
        yield from outlasted(on)
        yield from _in_an_emergency(on)
    if (yield from _fixed_and_applied(on, "at first")):
        yield from _again(on)
    yield from about_one_state(on, "after apply")
    if on.is_installed:
        chance = random.Random(f"later {crowded.seed}")
        for _ in range(_ROUNDS):
            yield from _meddled(on, chance)
        others = on.routes(of_others=True)
        yield from _fixed_and_applied(on, "at last")
        yield from about_one_state(on, "at last")
    if on.run("remove").code:
        yield "remove fails"
    if left := on.routes(of_others=False):
        yield f"remove leaves {left}"
    if on.routes(of_others=True) != others:
        yield f"routes of others were {others}, and are {on.routes(of_others=True)}"


def _meddled(on: Session, chance: random.Random) -> Iterator[str]:
    """Meddle with a host, and yield what contradicts itself then."""
    before, shown = on.snapshot("before"), on.shown
    done = meddle(on, chance)
    when = f"after ({done})"
    yield from about_the_change(on, before, shown, when)
    yield from about_one_state(on, when)
    yield from about_the_doctor(on, when)
    if chance.random() < 0.5:
        yield from about_the_next_start(on, when)
    way = chance.choice(("fix", "apply", "advice", "answer", "either", "either", ""))
    if way == "fix":
        yield from _fixed_and_applied(on, when)
    elif way == "apply":
        yield from _applied(on, when)
    elif way == "advice":
        yield from advised(on, when)
    elif way == "answer":
        yield from answered(on, chance, when)
        yield from halved(on, when)
    elif way == "either":
        yield from told_apart(on, chance, when)


def _in_an_emergency(on: Session) -> Iterator[str]:
    """Run the commands of ``fix --format ip``, make their fix last, and delete what they added."""
    wanted = entries_of(json.loads(on.run("fix", str(on.config)).out or "null"))
    printed = on.run("fix", str(on.config), "--format", "ip")
    on.built.run([line.split(" ", 2)[2] for line in printed.out.splitlines() if line[:2] == "ip"])
    report = on.check()
    if printed.code == 0 and report["verdict"] != "ok":
        yield f"after the printed commands: {report['verdict']} {failing(report)}"
    yield from about_one_state(on, "in an emergency")
    on.run("fix", "--in-place", str(on.config))
    if wanted and on.listed != wanted:
        yield f"in an emergency, fix wrote {on.listed} instead of {wanted}"
    on.built.run(["rule flush proto 216", "route flush table all proto 216"])


def _fixed_and_applied(on: Session, when: str) -> Generator[str, None, bool]:
    """Fix CONFIG, and apply it.

    Returns:
        Whether ``apply`` succeeds.
    """
    # An operator who edits CONFIG asks for what its entries take away.
    is_edited = on.is_installed and on.json("plan").document.get("files")
    printed = on.run("fix", str(on.config))
    before = on.listed
    config = Config.load(on.config)
    report = check(config, host=on.built.host)
    packets = Before(on.built.crowded, on.built, report)
    fixed = on.run("fix", "--in-place", str(on.config))
    written = on.listed
    shown = entries_of(json.loads(printed.out)) if printed.out.strip() else before
    if shown != written:
        yield f"{when}: fix printed {shown}, and wrote {written}"
    on.run("fix", "--in-place", str(on.config))
    if on.listed != written:
        yield f"{when}: the second fix wrote {on.listed} after {written}"
    plan = on.json("plan").document
    told = (*told_by(report.fix), *plan.get("warnings", ()))
    is_done = yield from _applied(on, when, is_fixed=fixed.code == 0)
    # What inherits follows a gateway that moves.
    if not is_edited and not any("was" in each for each in plan.get("routes", ())):
        yield from (f"{when}: {line}" for line in _unnamed(on, config, report, packets, told))
    return is_done


def _unnamed(
    on: Session, config: Config, report: OverlapReport, before: Before, told: tuple[str, ...]
) -> Iterator[str]:
    """Yield what is lost by ``fix`` and ``apply``, and no caution names."""
    ranges = tuple(part for each in report.findings for part in each.ranges)
    if report.reason_kind is not None:
        ranges = tuple(each.cidr for each in config.route_overlap.expected_cidrs)
    keep = (*report.fix.keep, *config.static_routes.keep)
    after = check(config, host=on.built.host)

    def apply(_: Built) -> tuple[OverlapReport, None]:
        return after, None

    is_asked_for = config.static_routes.is_wanted
    done = Printed("fix", apply, told, ranges, keep=keep, is_asked_for=is_asked_for)
    return before.unnamed(done, on.built, after, None)


def _applied(on: Session, when: str, *, is_fixed: bool = False) -> Generator[str, None, bool]:
    """Apply CONFIG, as was planned.

    Returns:
        Whether ``apply`` succeeds.
    """
    planned = on.json("plan").document
    ours = on.routes(of_others=False)
    applied = on.json("apply")
    report = on.check()
    if is_fixed and (applied.code or report["verdict"] != "ok"):
        yield f"{when}: fix said that apply fixes all; {report['verdict']}, {applied.out[-900:]}"
    if "error" in planned:
        if not applied.code:
            yield f"{when}: plan said {planned['error']}, and apply succeeds"
        return not applied.code
    fails = bool(applied.code) and not applied.fails_by_check
    if planned["wouldFail"] is not fails:
        yield f"{when}: plan said {planned['warnings']}, and apply {applied.out[-900:]}"
    if fails and on.routes(of_others=False) != ours:
        yield f"{when}: an apply that failed left {on.routes(of_others=False)} instead of {ours}"
    if not fails:
        for key in ("routes", "rules", "files", "units"):
            if _sorted(planned[key]) != _sorted(applied.document[key]):
                yield f"{when}: plan said {planned[key]}, and apply did {applied.document[key]}"
        start = planned["nextStart"]
        yield from about_the_start_after_apply(on, start, when)
    return not applied.code


def _sorted(changes: list[Any]) -> list[Any]:
    return sorted(changes, key=json.dumps)


def _again(on: Session) -> Iterator[str]:
    """Yield what is changed by commands that have nothing left to do."""
    applied = on.json("apply")
    if applied.code or applied.document["changed"]:
        yield f"apply again: {applied.out[:900]}"
    written = on.listed
    on.run("fix", "--in-place")
    if on.listed != written:
        yield f"fix again wrote {on.listed} after {written}"
