"""Tasks that install or remove the static routes, the check and the watcher.

A single function, ``configure``, implements all of them. A run waits for the network, installs the
scripts, units and gate, and changes the routes. Then it removes obsolete files and routes, runs the
check, and starts the oneshots.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.boot import installation
from hostrouting.boot.files import exists, read_text, write_if_changed
from hostrouting.boot.go_package import hand_over, routes_to_adopt
from hostrouting.boot.host import Host
from hostrouting.boot.installation import KUBELET
from hostrouting.boot.layout import CHECK, ROUTES, WATCH
from hostrouting.boot.locks import Done, exclusive_run, locked
from hostrouting.boot.parts import Wanted
from hostrouting.boot.plan import BootPlan, plan_next_boot
from hostrouting.boot.python import why_unsuitable
from hostrouting.boot.trial_timer import remove_trial_leftovers
from hostrouting.config.routing import SECTION, Config, OverlapMode, StaticRoute, StaticRoutes
from hostrouting.host_files.managers import NETWORKD, keeps_foreign_rules
from hostrouting.kernel.port import read_routes
from hostrouting.model.changes import Change, Changes
from hostrouting.model.errors import FileError, HostRoutingError, RouteError, UnitError
from hostrouting.model.family import Family
from hostrouting.model.links import Link
from hostrouting.model.opening import translate_errors
from hostrouting.model.routes import Route, Table
from hostrouting.model.values import frozen
from hostrouting.model.verified_uplinks import (
    VerifiedUplink,
    find_verified,
    is_recordable,
    parse_verified,
    verified_text,
)
from hostrouting.overlap.check import Checked, check_families, nothing_expected, unjudged_image
from hostrouting.overlap.findings import OverlapReport, RouteOverlapError, UnknownReason, Verdict
from hostrouting.overlap.markers import write_markers
from hostrouting.overlap.printed_on_host import printed_on
from hostrouting.overlap.summary import error_text
from hostrouting.routes.install import converge
from hostrouting.routes.plan import (
    RoutePlan,
    RoutesReport,
    adopted_routes,
    plan_since,
    read_policy,
)
from hostrouting.tasks.arguments import ConfigTask, HostTask
from hostrouting.tasks.install_routes import (
    wait_for_network,
    write_routes,
)
from hostrouting.tasks.queries import with_namespace_note
from hostrouting.tasks.remaining import final_note, record_remaining
from hostrouting.tasks.reports import ConfigureReport, WatchReport
from phases import CancelScope, Undo, all_or_nothing, run_child, task

if TYPE_CHECKING:
    from hostrouting.routes.policy import PolicyRouting


class ConfigureStaticRoutes(ConfigTask):
    """Install a config's static routes, which win over routes with shorter prefixes.

    A route of an earlier run that is no longer in the config is removed. Routes of other programs
    are never changed. On a running STRICT node, use ``Configure``, which updates routes and
    expected CIDRs in one step.
    """

    name = "configure-static-routes"

    def do(self, scope: CancelScope) -> RoutesReport:
        """Install the routes.

        Returns:
            The added, replaced, removed and unchanged routes, and the changed files and units.

        Raises:
            RouteError: a route can't be installed, or the kernel doesn't use it. All changes have
                been rolled back.
            FileError: a file can't be written, or the lock can't be acquired; all changes are
                rolled back.
        """
        report = configure(self.config, self.host, scope, ROUTES)
        return attrs.evolve(report.routes, changes=report.changes)


class ConfigureWatch(ConfigTask):
    """Install the watcher if it is enabled in the config; otherwise remove it.

    The watcher reads the installation's manifest, so it picks up changes made by the other tasks.
    """

    name = "configure-watch"

    def do(self, scope: CancelScope) -> WatchReport:
        """Install or remove the watcher.

        Returns:
            The changes.

        Raises:
            UnitError: systemd refuses an operation, or can't run this Python; all changes are
                rolled back.
            FileError: a file can't be written, or the lock can't be acquired; all changes are
                rolled back.
        """
        return WatchReport(configure(self.config, self.host, scope, WATCH).changes)


class CheckRouteOverlap(ConfigTask):
    """Verify that every expected CIDR leaves through the node's uplinks, and write the result.

    On a running STRICT node, use ``Configure``, which updates routes and expected CIDRs in one
    step.

    Args:
        config: the config with the expected CIDRs and the mode. The mode determines what happens if
            a CIDR fails.
    """

    name = "check-route-overlap"

    def do(self, scope: CancelScope) -> OverlapReport:
        """Check the expected CIDRs, and install the check, which then runs at every boot.

        Returns:
            The report. In WARN mode, the report is returned even if an expected CIDR fails.

        Raises:
            RouteOverlapError: the mode is STRICT, and a CIDR fails or the verdict is unknown. The
                markers have been written by then, and nothing is rolled back.
            UnitError: the installed routes were rendered for different uplinks; use ``Configure``
                to update both the routes and the check.
            FileError: a file can't be written, or the lock can't be acquired.
        """
        report = configure(self.config, self.host, scope, CHECK)
        return attrs.evolve(report.overlap, changes=report.changes)


class Configure(ConfigTask):
    """Install the routes, the gate and the watcher for every boot, then check the expected CIDRs.

    The scripts, with the expected CIDRs, are in place before the kernel's routes change. A start of
    the node is therefore checked against either the old or the new config, never against a mix.
    """

    name = "configure"

    def do(self, scope: CancelScope) -> ConfigureReport:
        """Install everything, and then check the expected CIDRs.

        Returns:
            The reports for the routes, the watcher and the check, and all changes.

        Raises:
            HostRoutingError: an error of installing the routes or the watcher, or of the check. If
                the installation fails, the check is skipped.
        """
        return configure(self.config, self.host, scope)


class RemoveHostRouting(HostTask):
    """Remove everything that was ever installed. No config is needed."""

    name = "remove-host-routing"

    def do(self, scope: CancelScope) -> RoutesReport:
        """Remove the installation.

        Returns:
            The removed routes, files and units.

        Raises:
            RouteError: a route or rule can't be removed. Unless ``changes`` lists what is removed
                already, nothing is.
            FileError: a file can't be removed or inspected; everything else is removed, and the
                task can be run again. Or this process isn't in the host's network namespace; then
                nothing is removed.
        """
        self.host.refuse_another_network("can't remove what is installed")
        report = configure(Config(), self.host, scope)
        changes = report.changes
        try:
            changes |= _delete_printed(self.host)
        except HostRoutingError as error:
            error.changes = changes | error.changes
            raise
        if report.warnings:
            raise FileError(
                "\n".join(report.warnings),
                hint="then remove again",
                changes=changes,
            )
        return attrs.evolve(report.routes, changes=changes)


def _delete_printed(host: Host) -> Changes:
    """Delete what ``fix --format ip`` has added, in both families, and return the changes."""
    changes = Changes()
    if host.is_image:
        return changes
    for each in printed_on(host):
        from hostrouting.routes.install_policy import delete_entries

        try:
            changes |= delete_entries(each.rules, each.routes, host.routes_of(each.family))
        except RouteError as error:
            error.changes = changes | error.changes
            raise
    return changes


# --- the run --------------------------------------------------------------------------------------


def configure(
    config: Config,
    host: Host,
    scope: CancelScope,
    *names: str,
) -> ConfigureReport:
    """Apply a config to the given parts: install those that it enables, and remove the others.

    Args:
        names: the parts to install or remove, or none for all of them. Other parts are left
            unchanged.

    Raises:
        HostRoutingError: the run failed. If the installation failed, it is rolled back. The error
            lists the changes that remain.
        StoppedRun, OverdueRun: the run was cancelled, or its deadline passed. Changes that the run
            had already made remain.
    """
    host = host.within(scope)
    wanted = Wanted.of(config, host.layout, *names)
    with exclusive_run(host, scope, is_installing=bool(wanted.parts)) as done:
        run = Run.begin(config, host, wanted, scope, done)
        install = run.install
        finish = run.finish
        if wanted.parts and not names:
            # Logs and observers show the installation and the check as two tasks.
            install = partial(run_child, task("configure-static-routes")(install))
            finish = partial(run_child, task("check-route-overlap")(finish))
        plan = install(scope)
        if not host.is_image:
            # The trial is over, even if the check fails.
            remove_trial_leftovers(host)
        overlap = finish(scope)
    return ConfigureReport.of(plan, overlap, done.changes, run.warnings)


def warnings_of(config: Config, wanted: Wanted, host: Host) -> tuple[str, ...]:
    """Return the reasons why an installation can't work yet.

    The reasons aren't errors, because they may disappear later.

    Raises:
        UnitError: systemd is running but can't be queried.
    """
    warnings = [*_watch_warnings(config, wanted, host)]
    if any(part.is_gated for part in wanted.parts):
        warnings += _python_warnings(wanted, host)
        warnings += _consumer_warnings(wanted.consumer, host)
    if ROUTES in wanted.part_names:
        warnings += _networkd_warnings(config, host)
    return tuple(warnings)


def _watch_warnings(config: Config, wanted: Wanted, host: Host) -> Iterator[str]:
    if WATCH in wanted.names and config.watch.enabled and not config.is_gated:
        yield (
            "there is nothing to watch, so no watcher is installed: "
            "CONFIG names no route and no CIDR"
        )
    if WATCH not in wanted.part_names:
        return
    if host.is_image and not host.layout.followed(sys.executable).exists():
        yield (
            f"{sys.executable} isn't in the image: install hostrouting there at that path, where "
            "only root can change it, or the watcher's unit fails"
        )
    textfile = config.watch.textfile
    if textfile is None:
        return
    folder = textfile.rpartition("/")[0] or "/"
    with translate_errors(f"look at {folder}"):
        is_there = host.layout.of(folder).is_dir()
    if not is_there:
        yield (
            f"there is no folder {folder}: make it, "
            "and restart the watcher, which can't write metrics"
        )


def _networkd_warnings(config: Config, host: Host) -> Iterator[str]:
    static = config.static_routes
    if not (static.rules or static.keep) or config.watch.enabled:
        return
    if removes_our_rules(host):
        yield (
            f"{NETWORKD} runs, and removes other programs' policy rules, for example at networkctl "
            "reconfigure: enable the watcher (hostRouting.watch), which restores them, or set "
            "ManageForeignRoutingPolicyRules=no in networkd.conf"
        )


def removes_our_rules(host: Host) -> bool:
    """Return whether systemd-networkd runs, and removes other programs' policy rules."""
    if keeps_foreign_rules(host.layout.root):
        return False
    return _is_running(host, f"{NETWORKD}.service")


def _is_running(host: Host, unit: str) -> bool:
    try:
        return host.units.is_active(unit)
    except UnitError as error:
        if error.errno not in (None, errno.ENOENT):
            raise
        return False  # there is no systemd


def _python_warnings(wanted: Wanted, host: Host) -> Iterator[str]:
    is_checked_here = CHECK in wanted.part_names and host.layout.is_this_host
    if is_checked_here and (why := why_unsuitable(host.layout)):
        yield (
            "at boot nothing explains a failing verdict, or judges what the script can't: "
            f"{why}, and root starts no Python that depends on the environment, a home or another "
            "user"
        )


def _consumer_warnings(consumer: str, host: Host) -> Iterator[str]:
    try:
        if not installation.is_there(host, consumer):
            yield f"there is no unit {consumer}: until there is, nothing is held back"
        if installation.has_free_kubelet(host, consumer):
            yield (
                f"{KUBELET} starts at boot, and nothing holds it back: the consumer is {consumer}; "
                f"if the kubelet is the node, set hostRouting.consumer to {KUBELET}"
            )
    except UnitError as error:
        if error.errno not in (None, errno.ENOENT):
            raise
        # If the errno is None or ENOENT, systemd isn't running, so units can't be queried.


@attrs.define(eq=False, repr=False)
class Run:
    """The state of one ``configure`` run.

    Args:
        wanted: the parts to install or remove.
        started: when the run started, in seconds on its scope's clock.
        warnings: warnings for the report, or for the error of a failing check.
        done: the changes made so far, without rolled-back ones.
        boot: the plan for the next boot, which ``install`` makes.
        loaded: what systemd had loaded before the run, as ``install`` reads it; see ``prepare``.
        notes: a sentence for each kept interface or address that ``install`` leaves out.
    """

    config: Config
    host: Host
    wanted: Wanted
    started: float
    warnings: tuple[str, ...]
    done: Done
    boot: BootPlan = attrs.field(init=False)
    loaded: installation.Loaded | None = attrs.field(init=False)
    notes: tuple[str, ...] = attrs.field(default=(), init=False)

    @classmethod
    def begin(
        cls,
        config: Config,
        host: Host,
        wanted: Wanted,
        scope: CancelScope,
        done: Done,
    ) -> Run:
        """Start the clock of a run, and collect the warnings."""
        started = scope.clock.monotonic()
        warnings = warnings_of(config, wanted, host)
        return cls(host.with_verified(config), host, wanted, started, warnings, done)

    def install(self, scope: CancelScope) -> RoutePlan:
        """Install the kernel routes and everything for the next boot; roll back if any step fails.

        Returns:
            The executed route plan. The caller still has to call ``finish``.

        Raises:
            HostRoutingError: the installation failed; all changes are rolled back.
        """
        config = self.config
        host = self.host
        has_routes = not host.is_image and ROUTES in self.wanted.names
        if has_routes:
            wait_for_network(config, host, scope, self.started)
        self.boot = plan_next_boot(host, self.wanted)
        self.warnings += self.boot.files.access_errors
        with final_note(self.done), all_or_nothing() as undo:
            undo.push(partial(record_remaining, self.done, host))
            self.done.attempted = self.boot.changes
            if has_routes:
                changes, plan = self._install_with_routes(scope, undo)
            else:
                self.loaded = installation.prepare(self.boot, host, undo)
                changes = installation.apply_additions(self.boot, host, undo, self.loaded)
                plan = RoutePlan()
        self.warnings += plan.diverted
        self.notes = plan.notes
        self.done.succeed(changes | plan.changes)
        return plan

    def _install_with_routes(self, scope: CancelScope, undo: Undo) -> tuple[Changes, RoutePlan]:
        config = self.config
        host = self.host
        wants_routes = config.static_routes.is_wanted
        adopted = routes_to_adopt(host, replaces_script=wants_routes)
        # This is the first step, so a rollback undoes it last, when the Go package's script is
        # back.
        if adopted or exists(host.layout.adopted):
            hand_over(adopted, host.layout, undo)
        self.loaded = installation.prepare(self.boot, host, undo)
        former = self._former(adopted)
        if self.boot.changes_routes_script:
            # If the node starts from here on, the new routes script may install routes even before
            # this run does. A rollback removes these routes, too.
            undo.push(partial(_restore, former, host))
        changes = installation.apply_additions(self.boot, host, undo, self.loaded)
        # If the lock file exists, a script may be installing our routes right now.
        may_have_routes = former.routes or exists(host.layout.lock)
        removes_all = not self.wanted.parts
        if wants_routes or may_have_routes or (removes_all and self._has_our_rules()):
            plan = write_routes(config, host, scope, self.started, adopted, self.done)
            if self.boot.changes_routes_script:
                # A held start may have run the new script first. Report its changes, too.
                plan = plan_since(former.routes, former.policies, plan)
            return changes, plan
        return changes, RoutePlan()

    def _has_our_rules(self) -> bool:
        """Return whether the kernel has rules or side tables of ours."""
        backends = self.host.planned_backends(self.config)
        found = map(read_policy, backends)
        return any(policy.rules or policy.routes for policy in found)

    def _former(self, adopted: Sequence[StaticRoute]) -> _Former:
        """Return our routes and rules in the kernel that a rollback must restore."""
        former: tuple[Route, ...] = ()
        # If no routes are wanted, this run removes ours. If it replaces the routes script, the new
        # script may change ours.
        if self.boot.changes_routes_script or not self.config.static_routes.is_wanted:
            former = self.host.our_routes()
        if adopted:
            former += adopted_routes(adopted, read_routes(self.host.routes, Table.MAIN))
        policies: dict[Family, PolicyRouting] = {}
        if self.boot.changes_routes_script:
            for family in self._policy_families:
                policies[family] = read_policy(self.host.routes_of(family))
        return _Former(former, policies)

    @property
    def _policy_families(self) -> set[Family]:
        """Return the families in which the old or the new routes script changes rules."""
        static_routes = [self.config.static_routes]
        try:
            static_routes.append(self.boot.manifests.old.read_as(_rules_and_keep))
        except FileError:  # the edited manifest doesn't tell the script's rules
            return {backend.family for backend in self.host.planned_backends(self.config)}
        families: set[Family] = set()
        for each in static_routes:
            families.update(Family.of(rule.to) for rule in each.rules)
            if each.keep:
                families.add(Family.IPV4)
        return families

    def _about_printed(self, overlap: OverlapReport, scope: CancelScope) -> tuple[str, ...]:
        """Return a sentence if anything is left of what ``fix --format ip`` printed."""
        if not printed_on(self.host):
            return ()
        from hostrouting.overlap.lasting import advice_on_printed, as_sentence, lasting_file

        file = lasting_file(self.host, "", self.config)
        told = as_sentence(advice_on_printed(self.config, self.host, file, overlap, scope))
        return (told,) if told else ()

    def finish(self, scope: CancelScope) -> OverlapReport:
        """Remove obsolete files, units and routes, run the check, and start the oneshots.

        Raises:
            RouteOverlapError: the mode is STRICT, and a CIDR fails or the verdict is unknown.
            HostRoutingError: a removal or the check failed; the next run does the remaining steps.
        """
        self.done.add(installation.apply_removals(self.boot, self.host, scope))
        overlap = self._check(scope)
        if self.host.is_image:
            return overlap
        if overlap.verdict is not Verdict.UNKNOWN:
            self.warnings += self._about_printed(overlap, scope)
        gated = [part.name for part in self.wanted.parts if part.is_gated]
        self.done.add(installation.start_oneshots(self.host, gated, self.loaded))
        scope.check()
        is_check_alone = ROUTES not in self.wanted.names
        if overlap.findings:
            overlap = _with_unapplied(overlap, self.config, self.host, scope)
        hint = (
            f"{'the check' if is_check_alone else 'everything'} is installed: running machines "
            f"continue, and the next start of {self.wanted.consumer} is held back until this is "
            "fixed; to uninstall: hostrouting remove"
        )
        raise_if_strict(overlap, (*self.warnings, *self.notes), hint=hint)
        return overlap

    def _check(self, scope: CancelScope) -> OverlapReport:
        """Run the check and write the markers, if the check is one of the parts."""
        host = self.host
        overlap = self.config.route_overlap
        if host.is_image:
            return unjudged_image(self.config, host)
        if CHECK not in self.wanted.names or not overlap.expected_cidrs:
            return nothing_expected(overlap)
        report = check_families(self.config, host.routes_of, scope, host=host, started=self.started)
        report = with_namespace_note(report, host)
        # The check script and the watcher take this lock, too. Without the lock, concurrent writes
        # could leave both markers behind.
        with locked(host.layout.lock, scope):
            write_markers(host.layout, report)
        self.done.add(_record_uplinks(self.config, report, host, scope))
        return report


def _rules_and_keep(sections: Mapping[str, Any]) -> StaticRoutes:
    """Parse static routes without the routes, because parsing thousands takes too long."""
    static = sections.get(SECTION, {}).get("staticRoutes")
    if isinstance(static, dict):
        static = {key: value for key, value in static.items() if key != "routes"}
    return Config.from_mapping({SECTION: {"staticRoutes": static}}).static_routes


def _with_unapplied(
    report: OverlapReport, config: Config, host: Host, scope: CancelScope
) -> OverlapReport:
    """Return the report, with the config's entries that the kernel lacks apart from its fix."""
    from hostrouting.overlap.unapplied import with_unapplied

    return with_unapplied(Checked.of(report), config, host, scope)


def _record_uplinks(
    config: Config, report: OverlapReport, host: Host, scope: CancelScope
) -> Iterator[Changes]:
    change = change_to_record(config, report, host)
    if change is None or change.after is None:
        return
    # A link may have been renamed after the check, before its MAC address was read. So check again:
    # if the record is the same before and after the second check, its uplinks had these MAC
    # addresses.
    again = check_families(config, host.routes_of, scope, host=host)
    if again.reason_kind is UnknownReason.CHECK_FAILED:
        raise RouteError(f"can't record the verified uplink: {again.reason}", hint="try again")
    if change_to_record(config, again, host) == change:
        write_if_changed(host.layout.verified, change.after)
        yield Changes(files=(change,))


def _has_verified(config: Config, report: OverlapReport) -> bool:
    """Return whether a check has verified uplinks that can be recorded."""
    devs = report.default_devs
    is_verified = config.verifies_uplinks and report.verdict is Verdict.OK
    return is_verified and bool(devs) and all(map(is_recordable, devs))


def change_to_record(config: Config, report: OverlapReport, host: Host) -> Change | None:
    """Return the change that records the uplinks of a passed check; None if nothing changes.

    Only a STRICT check begins a record. The uplinks are recorded under their present names. A
    recorded uplink that is missing now stays in the record, as long as another recorded uplink is
    there.
    """
    devs = report.default_devs
    if not _has_verified(config, report) or host.has_another_network:
        return None
    path = host.layout.verified
    before = read_text(path)
    if before is None and config.route_overlap.mode is not OverlapMode.STRICT:
        return None
    uplinks = _uplinks_to_record(config, devs, host.routes.facts().links)
    after = verified_text(sorted(uplinks, key=str))
    if before is not None and _records_the_same(before, after):
        return None
    action = "added" if before is None else "replaced"
    return Change(host.layout.relative(path), action, before=before, after=after)


def _records_the_same(before: str, after: str) -> bool:
    """Return whether two records have the same uplinks; lines that no reader takes don't count."""
    try:
        return parse_verified(before) == parse_verified(after)
    except ValueError:
        return False


def _uplinks_to_record(
    config: Config,
    devs: Iterable[str],
    links: Sequence[Link],
) -> list[VerifiedUplink]:
    """Return the uplinks of a check, and recorded uplinks that are missing at the moment."""
    macs = {link.name: link.mac for link in links}
    uplinks = [VerifiedUplink(dev, macs.get(dev)) for dev in devs]
    if config.uplinks is None and find_verified(config.verified, links):
        uplinks += [each for each in config.verified if not find_verified([each], links)]
    return uplinks


def raise_if_strict(
    report: OverlapReport,
    warnings: tuple[str, ...] = (),
    *,
    hint: str = "",
) -> None:
    """Raise an error if the mode is STRICT and the verdict isn't ``ok``.

    No error is raised without expected CIDRs, because the gate then blocks no unit.
    """
    is_asked = report.reason_kind is not UnknownReason.NOTHING_EXPECTED
    if report.mode is OverlapMode.STRICT and report.verdict is not Verdict.OK and is_asked:
        raise RouteOverlapError(error_text(report), report, warnings, hint=hint)


@frozen(eq=False, repr=False)
class _Former:
    """Our routes and rules in the kernel before a run.

    Args:
        routes: our routes in table main, and the Go package's routes that the run adopts.
        policies: for each family whose rules the run may change, our rules and side tables.
    """

    routes: tuple[Route, ...]
    policies: Mapping[Family, PolicyRouting]


def _restore(former: _Former, host: Host) -> None:
    """Restore the former routes and rules, if any of them isn't in place."""
    if not _are_in_place(former.routes, host):
        with locked(host.layout.lock, CancelScope()):
            for backend in host.backends({route.family for route in former.routes}):
                of_family = [route for route in former.routes if route.family is backend.family]
                converge(of_family, backend)
    if not former.policies:
        return
    from hostrouting.routes.install_policy import restore_policy

    for family, policy in former.policies.items():
        backend = host.routes_of(family)
        if read_policy(backend) != policy:
            with locked(host.layout.lock, CancelScope()):
                restore_policy(policy, backend)


def _are_in_place(former: tuple[Route, ...], host: Host) -> bool:
    ours = tuple(route for route in former if route.is_ours)
    adopted = {route for route in former if not route.is_ours}
    if adopted and not adopted.issubset(read_routes(host.routes, Table.MAIN)):
        return False
    return host.our_routes() == ours
