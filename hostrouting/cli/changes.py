"""Format changes to routes, files and units as text, whether planned or made."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from hostrouting.cli.output import bad, columns, dim, good
from hostrouting.cli.report import overlap_text, unexpected_lines
from hostrouting.model.changes import Change, Changes
from hostrouting.model.rules import rule_words
from hostrouting.model.text import clean
from hostrouting.model.verified_uplinks import VERIFIED_PATH, parse_verified
from hostrouting.overlap.findings import UnknownReason

if TYPE_CHECKING:
    from hostrouting.config.routing import Config
    from hostrouting.model.routes import Route
    from hostrouting.routes.plan import RoutePlan
    from hostrouting.tasks.preview import Plan
    from hostrouting.tasks.reports import ConfigureReport

NOTHING = "nothing to change"

_NEW_FILE_LINES = 40


_PAINT = {
    **dict.fromkeys(("added", "enabled", "started", "restarted"), good),
    **dict.fromkeys(("removed", "disabled", "stopped"), bad),
}


def changes_lines(changes: Changes) -> list[str]:
    """Return one line per change: routes first, then rules, then files, then units."""
    return [
        *_lines(changes.routes, {}),
        *_lines(changes.rules, {}, "rule "),
        *_lines((*changes.files, *changes.units), {}),
    ]


def changed_text(plan: RoutePlan, changes: Changes, *, is_verbose: bool) -> str:
    """Return one line per change, and the number of unchanged routes.

    Args:
        plan: the plan that was applied.
        changes: what was changed on the host.
        is_verbose: whether to list each unchanged route.
    """
    same = _unchanged_lines(plan, "unchanged", is_changed=bool(changes), is_verbose=is_verbose)
    lines = changes_lines(changes.of_kernel) + same + changes_lines(changes.of_boot)
    if not changes:
        lines.append(_nothing(plan))
    return "\n".join(lines)


def applied_text(report: ConfigureReport, ending: str, *, is_verbose: bool) -> str:
    """Return the text about an apply: the overlap check's result, the changes, and the ending.

    The check's result is left out if no check was run.
    """
    parts: list[str] = []
    if report.overlap.cidrs and report.overlap.reason_kind is not UnknownReason.NO_KERNEL:
        width = columns(sys.stdout)
        parts.append(overlap_text(report.overlap, width=width, is_verbose=is_verbose))
    parts.append(changed_text(report.routes.plan, report.changes, is_verbose=is_verbose))
    return "\n".join([*parts, ending] if ending else parts)


def plan_text(plan: Plan, config: Config, *, is_verbose: bool) -> str:
    """Return the text about a plan: changes to routes, files and units, and the next start.

    Args:
        plan: the plan to show.
        config: the config that was planned.
        is_verbose: whether to list each unchanged route, and to show the files as diffs.
    """
    marks = {"added": "+", "replaced": "~", "removed": "-"}
    same = _unchanged_lines(plan.routes, "=", is_changed=bool(plan), is_verbose=is_verbose)
    changes = plan.changes
    lines = [*_lines(changes.routes, marks), *_lines(changes.rules, marks, "rule "), *same]
    if plan.missing is not None:
        lines.append(f"would wait up to {config.wait_seconds} s for {clean(plan.missing)}")
    if plan.pending:
        limit = config.route_overlap.address_seconds
        devs = clean(", ".join(plan.pending))
        lines.append(f"would wait up to {limit} s for an address on {devs}")
    if plan.boot is None:
        lines.append(dim("a snapshot contains no files and units: only routes were compared"))
    else:
        lines += boot_lines(plan.boot, is_verbose=is_verbose)
    if not plan:
        lines.append(_nothing(plan.routes))
    lines += [dim(line) for line in unexpected_lines(config)]
    start = f"the next start of {plan.next_start.consumer}"
    verdicts = {
        True: f"{start} {good('would be let through')}",
        False: f"{start} {bad('would be held back')}",
        None: f"whether the gate would let {start} through isn't known",
    }
    # A warning has the refusals.
    lines.append(f"{verdicts[plan.next_start.is_admitted]}: {clean(plan.next_start.reason)}")
    return "\n".join(lines)


_IMPERATIVE = {
    "enabled": "enable",
    "disabled": "disable",
    "restarted": "restart",
    "stopped": "stop",
}


def boot_lines(boot: Changes, *, is_verbose: bool) -> list[str]:
    """Return one line per planned change of a file or a unit.

    Args:
        boot: the planned changes of files and units.
        is_verbose: whether to show the files as diffs.
    """
    lines: list[str] = []
    for change in boot.files:
        lines += _diff_lines(change) if is_verbose and _has_diff(change) else [_file_line(change)]
    lines += [_PAINT[each.action](f"{_IMPERATIVE[each.action]} {each.what}") for each in boot.units]
    if not is_verbose and any(map(_has_diff, boot.files)):
        lines.append(dim("-v shows the files as diffs"))
    return lines


def _file_line(change: Change) -> str:
    from hostrouting.boot.go_package import is_go_package_script

    name = clean(str(change.what))
    if change.after is None:
        return bad(f"- {name}")
    if name == f"/{VERIFIED_PATH}":
        devs = ",".join(uplink.name for uplink in parse_verified(change.after))
        name = f"{name} ({devs})"
    if change.before is None:
        return good(f"+ {name}")
    if is_go_package_script(change.before):
        return good(f"~ {name} (instead of the Go package's)")
    return good(f"~ {name}{' (its mode or owner)' if change.before == change.after else ''}")


def _has_diff(change: Change) -> bool:
    """Return whether a planned change of a file is worth a diff.

    No diff is shown for a removed file, a long new file, a replaced script of the Go package, and a
    change of only the mode or owner.
    """
    from hostrouting.boot.go_package import is_go_package_script

    if change.after is None or change.before == change.after:
        return False
    if change.before is None:
        return change.after.count("\n") <= _NEW_FILE_LINES
    return not is_go_package_script(change.before)


def _diff_lines(change: Change) -> list[str]:
    """Return a planned file change as a unified diff."""
    import difflib

    name = clean(str(change.what))
    before = (change.before or "").splitlines()
    after = (change.after or "").splitlines()
    old = "/dev/null" if change.before is None else name
    paint = {"+": good, "-": bad, "@": dim}
    lines = difflib.unified_diff(before, after, old, name, n=1, lineterm="")
    return [paint.get(line[0], str)(clean(line)) for line in lines]


def _lines(
    changes: Iterable[Change],
    marks: Mapping[str, str],
    kind: str = "",
) -> Iterator[str]:
    """Yield a line for each change: its mark or action, a word for its kind, and its subject."""
    # Thousands of lines may have the same action, so its word is coloured only once.
    for action, alike in groupby(changes, attrgetter("action")):
        word = marks.get(action) or action.ljust(len("unchanged"))
        start, end = _PAINT.get(action, str)(f"{word} \n").split("\n")
        for each in alike:
            was = "" if each.was is None else dim(f"  was: {clean(str(each.was))}")
            yield f"{start}{kind}{clean(str(each.what))}{end}{was}"


def _unchanged_lines(
    plan: RoutePlan,
    word: str,
    *,
    is_changed: bool,
    is_verbose: bool,
) -> list[str]:
    """Return lines on our unchanged routes (or their number), and on other programs' routes."""
    lines = [f"{clean(str(route))}  ({_owner(route)}, already there)" for route in plan.foreign]
    if is_verbose:
        routes = (clean(str(route)) for route in plan.unchanged_routes)
        rules = (f"rule {rule_words(rule)}" for rule in plan.unchanged_rules)
        lines = [*routes, *rules, *lines]
    elif is_changed and (number := _number_of_unchanged(plan)):
        lines.insert(0, number)
    return [dim(f"{word} {line}") for line in lines]


def _owner(route: Route) -> str:
    """Return whose a route is that isn't ours, as a phrase."""
    return "printed by fix --format ip" if route.is_printed else "another program's"


def _nothing(plan: RoutePlan) -> str:
    """Return the line for a run without changes, with the number of our routes and rules."""
    number = _number_of_unchanged(plan)
    return f"{NOTHING}: {number} already installed" if number else NOTHING


def _number_of_unchanged(plan: RoutePlan) -> str:
    """Return the number of our unchanged routes and rules in words, or an empty string."""
    counts = (("route", len(plan.unchanged_routes)), ("rule", len(plan.unchanged_rules)))
    return " and ".join(f"{count} {name}{'s'[: count != 1]}" for name, count in counts if count)
