"""Find the changes of a failed run that its rollback couldn't undo."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from hostrouting.boot.files import is_present, read_text
from hostrouting.boot.host import Host
from hostrouting.boot.locks import Done
from hostrouting.config.routing import Config
from hostrouting.kernel.port import read_routes
from hostrouting.kernel.selection import Selection
from hostrouting.model.changes import Change, Changes
from hostrouting.model.errors import HostRoutingError
from hostrouting.model.routes import Protocol, Route, Table
from hostrouting.model.rules import rule_words
from hostrouting.routes.install import route_of_each_hop
from phases import PathNote

# The entries with our protocol, in table main and in our side tables.
_OURS_IN_ALL_TABLES = Selection(protocol=Protocol.HOSTROUTING)


def record_remaining(done: Done, host: Host) -> None:
    """Add the attempted changes that are still in place, or may be, to a run's changes.

    A run pushes this function as its first rollback step, so it is called last.

    Raises:
        RouteError: the kernel can't be queried.
        FileError: a file can't be read.
    """
    attempted = done.attempted
    left = Changes()
    unconfirmed = Changes()
    errors: list[HostRoutingError] = []
    for part, find in (
        (attempted.of_boot, _files_in_place),
        (attempted.of_kernel, _routes_in_place),
    ):
        try:
            left |= find(part, host)
        except HostRoutingError as error:
            unconfirmed |= part
            errors.append(error)
    done.fail(left, unconfirmed)
    if errors:
        raise errors[0]


@contextmanager
def final_note(done: Done) -> Iterator[None]:
    """Add a note to a rollback's exception if all routes and rules are back despite a failed step.

    Without this note, the earlier step's note would be the last word on the routes and rules.

    Args:
        done: the changes, as ``record_remaining`` has recorded them.
    """
    try:
        yield
    except BaseException as error:
        notes = getattr(error, "__notes__", [])
        has_failures = any(not isinstance(note, PathNote) for note in notes)
        if done.are_routes_back and has_failures:
            vars(error)["__notes__"] = [*notes, "in the end, all routes and rules were put back"]
        raise


def _files_in_place(attempted: Changes, host: Host) -> Changes:
    return Changes(
        files=tuple(change for change in attempted.files if _is_file_in_place(change, host)),
        units=tuple(change for change in attempted.units if _is_unit_in_place(change, host)),
    )


def _is_file_in_place(change: Change, host: Host) -> bool:
    """Return whether a change of a file hasn't been undone."""
    path = host.layout.of(str(change.what))
    if change.action == "replaced":
        return read_text(path) != change.before
    return is_present(path) == (change.action == "added")


def _is_unit_in_place(change: Change, host: Host) -> bool:
    """Return whether a unit is still enabled, the only change of a unit that a run rolls back."""
    name = str(change.what).removesuffix(".service")
    return change.action == "enabled" and is_present(host.layout.enablement(name))


def _ours_in_kernel(host: Host) -> tuple[set[str], set[Route]]:
    """Return our rules in words, and our routes with a single hop each."""
    rules: set[str] = set()
    hops: set[Route] = set()
    for backend in host.planned_backends(Config()):
        rules.update(rule_words(rule) for rule in backend.facts().rules if rule.is_ours)
        hops.update(_hops(backend.entries(_OURS_IN_ALL_TABLES)))
    return rules, hops


def _routes_in_place(attempted: Changes, host: Host) -> Changes:
    if not attempted:
        return attempted
    rules, hops = _ours_in_kernel(host)
    if any(_was_of_go_package(change) for change in attempted.routes):
        hops.update(_hops(read_routes(host.routes, Table.MAIN)))
    return Changes(
        routes=tuple(change for change in attempted.routes if _is_route_in_place(change, hops)),
        rules=tuple(change for change in attempted.rules if _is_rule_in_place(change, rules)),
    )


def _is_rule_in_place(change: Change, rules: set[str]) -> bool:
    """Return whether the kernel has an added rule, or lacks a removed one."""
    return (change.what in rules) == (change.action == "added")


def _was_of_go_package(change: Change) -> bool:
    """Return whether a route was the Go package's: it has another protocol than ours."""
    former = change.was or change.what
    return isinstance(former, Route) and former.protocol != Protocol.HOSTROUTING


def _is_route_in_place(change: Change, hops: set[Route]) -> bool:
    """Return whether the kernel has a hop that the change adds, or lacks one that it takes away."""
    after = _hops([] if change.action == "removed" else [change.what])
    before = _hops([change.what] if change.action == "removed" else [change.was])
    return bool((after - before) & hops) or not (before - after) <= hops


def _hops(routes: Iterable[object]) -> set[Route]:
    """Return the routes, with one route for each hop of an IPv6 route."""
    found: set[Route] = set()
    for route in routes:
        if isinstance(route, Route):
            found.update(route_of_each_hop(route))
    return found
