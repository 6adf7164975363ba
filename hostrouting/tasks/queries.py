"""Read-only functions for inspecting a host, for the command line and other programs.

Pass ``host=Host.recorded(snapshot)`` to inspect a host from a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.boot.host import Host, check_snapshot
from hostrouting.config.routing import Config, FormerUplinkRecord
from hostrouting.model.errors import ConfigError, FileError
from hostrouting.model.family import Family, IpAddress
from hostrouting.model.jsonable import rfc_3339
from hostrouting.model.parsing import parse_any_unicast_address
from hostrouting.model.text import shown
from hostrouting.overlap.check import Checked, check_host, checked_host
from hostrouting.overlap.findings import Note, NoteKind, OverlapReport, Verdict
from hostrouting.overlap.node_ip import notes_on
from hostrouting.tasks.arguments import to_config, to_host, to_scope
from phases import CancelScope

# Modules that a check doesn't need are imported by the functions that need them. At the top of this
# module, the imports would add 30 ms to the 210 ms of a passing check.
if TYPE_CHECKING:
    from hostrouting.kernel.port import RouteBackend
    from hostrouting.kernel.snapshot import Snapshot
    from hostrouting.overlap.difference import DiffReport
    from hostrouting.overlap.explanation import Explanation
    from hostrouting.overlap.planned_host import PlannedHost


def check(
    config: Config,
    *,
    host: Host | None = None,
    scope: CancelScope | None = None,
    document: Mapping[str, Any] | None = None,
) -> OverlapReport:
    """Check that every expected CIDR leaves through the node's uplinks, without writing a marker.

    The check waits up to ``wait_seconds`` for a default route, and up to ``settle_seconds`` for
    InfiniBand addresses. A failing CIDR doesn't raise an error in either mode.

    Args:
        scope: cancels the check, and reports its waits.
        document: the document that contains the config. The report has a note if the document's
            ``node.kubelet.nodeIP`` or ``networking.dnsServiceIP`` contradicts the host or the
            config.

    Returns:
        The report. If the check couldn't run, for example on an image, the verdict is ``unknown``,
        and the report has a reason. The fix's ``unapplied`` has entries of the config that aren't
        in the kernel, but would fix a failure. Its ``unlisted`` has our routes and rules that cause
        a failure, and aren't in the config. If nothing fails, the fix's cautions say what ``apply``
        would divert.

    Raises:
        phases.Cancelled, phases.TimedOut: the scope was cancelled.
    """
    if not isinstance(document, Mapping | None):
        raise TypeError(f"check takes a mapping as document, not {shown(document)}")
    host = to_host(host)
    with to_scope(scope) as scope:
        report, _ = check_and_plan(to_config(config), host, scope)
    if document is None or host.is_image:
        return report
    notes = notes_on(document, report, host.routes)
    return attrs.evolve(report, notes=(*report.notes, *notes))


def check_and_plan(
    config: Config,
    host: Host,
    scope: CancelScope,
) -> tuple[OverlapReport, PlannedHost | None]:
    """Check a host, and compare its routes with the config's.

    Returns:
        The report of ``check``, and the host with the config's routes, which is None if anything
        fails, if the config has no routes, or if they can't be planned.
    """
    checked = _checked(config, host, scope)
    if checked.report.findings and not config.is_as_installed:
        from hostrouting.overlap.unapplied import with_unapplied

        return _of_host(with_unapplied(checked, config, host, scope), host), None
    report = _of_host(checked.with_fix(), host)
    if report.verdict is not Verdict.OK or config.is_as_installed:
        return report, None
    from hostrouting.overlap.unapplied import with_effects

    return with_effects(report, config, host, scope)


def check_kernel(
    config: Config,
    host: Host,
    backends: Callable[[Family], RouteBackend] | None,
    scope: CancelScope,
) -> OverlapReport:
    """Check a host's kernel, or a model of the kernel.

    Args:
        host: the host that the report names.
        backends: a function that returns the kernel to query for a family. The function may return
            a model with the config's routes. None means the host's own kernel.
    """
    if backends is None:
        return _of_host(_checked(config, host, scope).with_fix(), host)
    # A model never changes, so there is nothing to wait for.
    return _of_host(check_host(config, host, scope, backends=backends), host)


def _checked(config: Config, host: Host, scope: CancelScope) -> Checked:
    # A snapshot never changes, so there is nothing to wait for.
    started = scope.clock.monotonic() if host.snapshot is None else None
    return checked_host(config, host, scope, started=started)


def _of_host(report: OverlapReport, host: Host) -> OverlapReport:
    """Return a report with the name of the host, and with the time of its snapshot."""
    report = attrs.evolve(report, host=host.name)
    if host.snapshot is None:
        return with_namespace_note(report, host)
    taken = host.snapshot.taken
    return attrs.evolve(report, time=None if taken is None else rfc_3339(taken))


def with_namespace_note(report: OverlapReport, host: Host) -> OverlapReport:
    """Return a report, with one more note if this process has another network namespace."""
    if not host.has_another_network:
        return report
    message = (
        "this process has a network namespace of its own: "
        "the verdict is about that, not about the host"
    )
    return attrs.evolve(report, notes=(*report.notes, Note(NoteKind.NETNS, message)))


def explain(
    address: IpAddress | str,
    config: Config | None = None,
    *,
    host: Host | None = None,
    scope: CancelScope | None = None,
) -> Explanation:
    """Trace each lookup that a socket performs for an address through the rules and tables.

    Args:
        address: destination address (unicast).
        config: the config with the expected CIDRs. If the config is omitted or no CIDR contains the
            address, traffic to the address is expected to leave through an uplink.

    Returns:
        For each lookup, the evaluated rules, the matching entry, the interface, and the selected
        source address. If there is no default route to compare with, ``is_as_expected`` is None.

    Raises:
        ConfigError: the address isn't a unicast address.
        RouteError: the kernel can't be queried.
        phases.Cancelled, phases.TimedOut: the scope was cancelled.
    """
    from hostrouting.overlap import explanation

    config = Config() if config is None else to_config(config)
    host = to_host(host)
    try:
        address = parse_any_unicast_address(address)
    except ValueError as error:
        raise ConfigError([("address", str(error))]) from None
    config = host.with_verified(config)
    backend = host.routes_of(Family.of(address))
    with to_scope(scope) as scope:
        return explanation.explain(address, config, backend, scope, ipv4=host.routes)


def diff(
    a: Snapshot,
    b: Snapshot | None = None,
    config: Config | None = None,
    *,
    host: Host | None = None,
    scope: CancelScope | None = None,
) -> DiffReport:
    """Compare two snapshots of a host, address by address, and explain the differences.

    Args:
        a: the earlier snapshot.
        b: the later snapshot. None to take one of the host.
        config: the config with the expected CIDRs. Without expected CIDRs, all addresses are
            compared.

    Returns:
        The ranges of each CIDR whose lookup results differ, and the changes that explain each
        difference. Other changes are in ``others``. If the snapshots are of two hosts,
        ``host_before`` isn't ``host``. If the snapshots lack the data to compare the
        CIDRs, the report has a reason.

    Raises:
        RouteError, FileError: as for ``snapshot``.
        phases.Cancelled, phases.TimedOut: the scope was cancelled.
    """
    from hostrouting.overlap.difference import compare

    for given in (a,) if b is None else (a, b):
        check_snapshot(given, "diff")
    expected = () if config is None else to_config(config).route_overlap.expected_cidrs
    if host is not None:
        to_host(host)
    with to_scope(scope) as scope:
        later = snapshot(host=host, scope=scope) if b is None else b
        scope.check()
        return compare(a, later, [each.cidr for each in expected])


def render(config: Config) -> dict[str, str]:
    """Return the contents of all files that ``Configure`` installs on a fresh host, by their paths.

    The result depends only on the config. If the config enables nothing, there are no files. To
    install the files without ``Configure``, make each ``.sh`` executable (mode 0755), and enable
    the units. ``Configure`` with ``Host.image`` does both.
    """
    from hostrouting.boot.bundle import rendered_files
    from hostrouting.boot.layout import Layout

    layout = Layout("/sysroot")
    files = rendered_files(to_config(config), layout)
    return {layout.relative(file.path): file.text for file in files}


def installed_config(*, host: Host | None = None) -> Config:
    """Return the config that is installed for the next boot, or else an empty config.

    If the host changes afterwards, ``Configure`` with this config restores the installation and the
    verified uplinks. With a changed copy of this config, such as by ``attrs.evolve``, it leaves the
    host's verified uplinks as they are.

    Returns:
        The config of the installed parts. Routes that are only in the kernel aren't included, nor
        are other sections of the document. If the parts were installed with different values of
        ``waitSeconds``, the last part's value is returned.

    Raises:
        FileError: the manifest, which contains the config, can't be read or is invalid. Or the
            manifest is missing, but other files are installed. Or the record of verified uplinks
            can't be read.
    """
    from hostrouting.boot.files import exists
    from hostrouting.boot.manifest import Manifest

    host = to_host(host)
    layout = host.layout
    manifest = Manifest.of_host(layout)
    if manifest.parts and not exists(layout.manifest):
        raise FileError(
            f"can't tell what was installed: the manifest {layout.manifest} is missing, "
            "but its units are there",
            hint="run apply with the wanted config, or remove",
        )
    config = manifest.config
    restored = () if host.is_image else host.verified
    uplinks = restored if config.keeps_uplinks else ()
    record = FormerUplinkRecord(uplinks, config=config, restored=restored)
    return attrs.evolve(config, record=record)


def snapshot(*, host: Host | None = None, scope: CancelScope | None = None) -> Snapshot:
    """Take a snapshot of all state that a check reads, and of ignore_routes_with_linkdown.

    Returns:
        The snapshot. It includes IPv6 if both the host's backends and its kernel support IPv6.
        ``Snapshot.save`` writes a snapshot to a file, ``judge`` reports on it, and
        ``Host.recorded`` makes it a host.

    Raises:
        RouteError: the kernel can't be queried.
        FileError: a file such as resolv.conf can't be read.
        phases.Cancelled, phases.TimedOut: the scope was cancelled.
    """
    from hostrouting.overlap.snapshots import snapshot_of

    host = to_host(host)
    with to_scope(scope) as scope:
        return snapshot_of(host, scope)
