"""Check that the installed files exist, are writable only by root and can be executed."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hostrouting.boot.files import read_state, read_text
from hostrouting.boot.go_package import go_package_links
from hostrouting.boot.incomplete import incomplete
from hostrouting.boot.installed_units import UNIT_PATH, is_masked
from hostrouting.boot.layout import CHECK, WATCH, Layout
from hostrouting.boot.locks import locked
from hostrouting.boot.parts import CONFIGURED, installed_files, wanted_parts
from hostrouting.boot.python import all_in, files_of, is_changeable
from hostrouting.doctor.check_types import (
    DoctorFinding,
    ExaminedHost,
    Severity,
    has_no_programs,
    missing_tools,
    stale_files,
)
from hostrouting.model.errors import FileError
from hostrouting.model.opening import translate_errors
from hostrouting.overlap.printed_on_host import printed_on
from hostrouting.routes.printed import about_printed

_EXECUTABLE = 0o111

# The gate's own lock timeout.
_GATE_SECONDS = 5

# Ignore the path of Python, because the doctor may run with another Python than apply. In an
# image, the check script has no path. Only a path is ignored: any other value may be a command.
_PYTHON = re.compile(
    rb"""(?<=^readonly PYTHON=)(?:/[\w@%+=:,./-]+|'[^'\n]*')$"""
    rb"""|(?<=^ExecStart=)(?:/[\w@+=:,./-]+|"/[^"\n]+")(?= -I -m hostrouting )""",
    re.MULTILINE | re.ASCII,
)
# Ignore checksums, because the scripts themselves are compared.
_CHECKSUM = re.compile(rb" [0-9a-f-]+$", re.MULTILINE)

_TOOLS = {
    "bash": "bash",
    "ip": "iproute2",
    "awk": "mawk, gawk or busybox",
    "flock": "util-linux",
    "timeout": "coreutils",
}

_AGENT = "aks-flex-node-agent.service"


def _not_installed(examined: ExaminedHost, subject: str, apply: str) -> DoctorFinding:
    message = "nothing is installed: no node is held back"
    hint = apply
    if examined.given is not None and not examined.differing:
        message = "nothing is installed, and CONFIG enables nothing: no node is held back"
        hint = f"name routes and CIDRs in CONFIG; {apply}"
    elif examined.given is None and not examined.host.is_image:
        hint = f"hostrouting check shows what fails; to install: {apply}"
    return DoctorFinding("not-installed", subject, message, hint)


def installed(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that the manifest matches the config."""
    manifest = examined.manifest
    layout = examined.layout
    apply = examined.command("apply")
    subject = layout.relative(layout.manifest)
    left = incomplete(
        layout,
        apply if examined.config.is_gated else examined.naming("apply", "CONFIG"),
        examined.naming("remove"),
    )
    if left is not None:
        kind = "interrupted" if manifest.parts else "not-installed"
        yield DoctorFinding(kind, subject, left.message, left.hint)
        return
    if not manifest.parts:
        yield _not_installed(examined, subject, apply)
        return
    if examined.differing:
        message = f"{' and '.join(examined.differing)}: CONFIG asks for something else"
        config = examined.config_name or shlex.quote(str(layout.config))
        # Without a CONFIG, apply refuses to remove everything.
        named = "" if examined.config_name else f" {config}"
        hint = (
            f"to keep what is installed: hostrouting config set {config} --from "
            f"{shlex.quote(str(layout.manifest))}\n"
            f"to change to CONFIG: {examined.command('plan')}{named} shows the difference, "
            f"then {apply}{named}"
        )
        yield DoctorFinding("another-config", subject, message, hint)
    if manifest.former:
        message = (
            "a run was stopped while it moved the gate: "
            f"the old gate is still on {' '.join(manifest.former)}"
        )
        yield DoctorFinding("interrupted", subject, message, apply, Severity.RISK)


def rendered(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that every file has the content and mode that it would have if it were written now."""
    layout = examined.layout
    manifest = examined.manifest
    for file in installed_files(layout, manifest, wanted_parts(manifest.config, layout), {}):
        ignored = _CHECKSUM if file.path == layout.gate_list else _PYTHON
        name = layout.relative(file.path)
        state = read_state(file.path)
        if file.path.suffix == ".service" and is_masked(file.path):
            continue  # ``units`` reports masked units
        if state is None:
            yield DoctorFinding("file-missing", name, "it isn't there", examined.repairing("apply"))
            continue
        content, mode = state
        if ignored.sub(b"", content) != ignored.sub(b"", file.content):
            message = "it has been edited, or another version of hostrouting has written it"
            yield DoctorFinding("file-differs", name, message, examined.writing_anew)
        if mode & _EXECUTABLE != file.mode & _EXECUTABLE:
            message = f"its mode is {mode:04o}, not {file.mode:04o}: it can't be run"
            yield DoctorFinding("file-mode", name, message, f"chmod {file.mode:04o} {name}")


def changed_gate_files(examined: ExaminedHost) -> list[str]:
    """Return the scripts of the gate, and their list, that aren't as ``apply`` has written them.

    What the gate decides with such a file can't be predicted.
    """
    layout = examined.layout
    parts = (name for name, part in examined.manifest.parts.items() if part.is_gated)
    paths = (layout.gate_script, layout.gate_list, *map(layout.script, parts))
    found = {finding.subject for finding in rendered(examined)}
    return [name for name in map(layout.relative, paths) if name in found]


def units(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that the oneshots are enabled, and that systemd has read their present files."""
    waits = "the gate still judges, but at boot nothing waits for the network"
    for unit in examined.oneshots:
        properties = examined.units.show(unit, "LoadState", "NeedDaemonReload", "DropInPaths")
        if properties["LoadState"] == "masked":
            hint = f"systemctl unmask {unit}; {examined.command('apply')}"
            yield DoctorFinding("masked", unit, f"it is masked; {waits}", hint, Severity.RISK)
        elif not examined.units.is_enabled(unit):
            message = f"it doesn't start at boot; {waits}"
            yield DoctorFinding(
                "not-enabled",
                unit,
                message,
                f"systemctl enable {unit}",
                Severity.RISK,
            )
        if properties["NeedDaemonReload"] == "yes":
            message = "systemd hasn't read its current files"
            yield DoctorFinding(
                "not-reloaded",
                unit,
                message,
                "systemctl daemon-reload",
                Severity.RISK,
            )
        elif properties["DropInPaths"]:
            drop_ins = properties["DropInPaths"]
            message = f"it is changed by {drop_ins}; if it doesn't run its script, {waits}"
            yield DoctorFinding(
                "overridden",
                unit,
                message,
                f"look at: systemctl cat {unit}",
                Severity.RISK,
            )


def modes(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that only root can change our files and Python's files, and can open the locks."""
    layout = examined.layout
    trusted = _trusted(examined)
    for path in sorted(trusted):
        what = "everything in it, including the gate's scripts" if path.is_dir() else "it"
        yield from _changeable(layout, path, what, Severity.BROKEN)
    for path in sorted({*layout.passed(layout.relative(layout.config))} - trusted - {layout.root}):
        yield from _changeable(layout, path, "what the next apply installs", Severity.RISK)
    for lock in (layout.lock, layout.run_lock):
        yield from _lockable(layout, lock)


def _changeable(
    layout: Layout, path: Path, what: str, severity: Severity
) -> Iterator[DoctorFinding]:
    """Yield findings if users other than root can change a file or a folder."""
    state = _state(path)
    if state is None or not (stat.S_ISDIR(state.st_mode) or stat.S_ISREG(state.st_mode)):
        return  # the path is missing, or /dev/null, which masks a unit
    root = layout.root.stat()
    name = layout.relative(path)
    if state.st_uid != root.st_uid:
        message = f"it belongs to user {state.st_uid}, who can change {what}"
        yield DoctorFinding("file-owner", name, message, f"chown root:root {name}", severity)
    if is_changeable(state, root.st_gid):
        mode = stat.S_IMODE(state.st_mode)
        message = f"its mode is {mode:04o}: users other than root can change {what}"
        yield DoctorFinding("file-mode", name, message, f"chmod go-w {name}", severity)


def _lockable(layout: Layout, lock: Path) -> Iterator[DoctorFinding]:
    """Yield a finding if users other than root can open a lock, and so hold it."""
    state = _state(lock)
    if (
        state is not None
        and state.st_mode & 0o077
        and not is_changeable(state, layout.root.stat().st_gid)
    ):
        name = layout.relative(lock)
        mode = stat.S_IMODE(state.st_mode)
        message = f"its mode is {mode:04o}: users other than root can hold it, and delay starts"
        yield DoctorFinding("file-mode", name, message, f"chmod 0600 {name}", Severity.RISK)


def _state(path: Path) -> os.stat_result | None:
    """Return what stat(2) tells about a path; None if the path is missing."""
    with translate_errors(f"look at {path}"), suppress(FileNotFoundError, NotADirectoryError):
        return path.stat()
    return None


def _trusted(examined: ExaminedHost) -> set[Path]:
    """Return our files, Python's files, and the folders and symlinks on their paths."""
    layout = examined.layout
    folders = (layout.manifest.parent, layout.good.parent, layout.passed_starts)
    ours = (
        *folders,
        *examined.manifest.files(layout),
        *(layout.lock, layout.run_lock, layout.adopted, *layout.markers),
        *(layout.trial, layout.confirmed, layout.trial_script),
    )
    passed = {step for path in ours for step in layout.passed(layout.relative(path))}
    for folder in folders:
        # Only root can read the folder of the watcher's snapshots. For another user, skip the files
        # in the folder.
        with suppress(PermissionError):
            passed.update(map(Path, all_in(layout, folder)))
    for python in _pythons(layout):
        passed.update(map(Path, files_of(layout, python)))
    return passed - {layout.root}


def _pythons(layout: Layout) -> Iterator[str]:
    """Yield the paths of the Pythons that check script and watcher run."""
    script = read_text(layout.script(CHECK)) or ""
    unit = (read_text(layout.unit(WATCH)) or "").replace("%%", "%")
    for text, pattern in (
        (script, r"^readonly PYTHON=(.+)$"),
        (unit, r"^ExecStart=(.+) -I -m hostrouting "),
    ):
        found = re.search(pattern, text, re.MULTILINE)
        if found is not None:
            yield from filter(None, shlex.split(found[1]))


def access(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that the scripts are executable and the lock is available."""
    layout = examined.layout
    for folder in (layout.gate_script.parent, layout.config.parent):
        if not _has_flag(folder, os.ST_NOEXEC):
            continue
        name = layout.relative(folder)
        message = (
            "its file system is mounted noexec: no script can be run, and no start is let through"
        )
        yield DoctorFinding(
            "noexec",
            name,
            message,
            f"mount -o remount,exec $(findmnt -no TARGET -T {name})",
        )
    if _has_flag(layout.run_dir, os.ST_RDONLY):
        name = layout.relative(layout.run_dir)
        message = (
            "it is read-only: the scripts can't take their lock, "
            "and the routes count as not installed"
        )
        yield DoctorFinding(
            "read-only",
            name,
            message,
            f"mount -o remount,rw $(findmnt -no TARGET -T {name})",
        )
    elif layout.lock.exists():
        try:
            with locked(layout.lock, examined.scope, seconds=_GATE_SECONDS):
                return
        except FileError as error:
            if error.errno is not None:  # it isn't the timeout
                raise
        lock = layout.relative(layout.lock)
        message = (
            f"another process has held it for {_GATE_SECONDS} s: "
            "starts are held back until it is released"
        )
        yield DoctorFinding("locked", lock, message, f"see who: fuser -v {lock}")


def _has_flag(folder: Path, flag: int) -> bool:
    """Return whether a folder, or its nearest existing parent, is mounted with a flag."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return bool(os.statvfs(there).f_flag & flag)


def leftovers(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check for leftovers from the Go package, earlier versions or a previous consumer."""
    layout = examined.layout
    for link in map(layout.relative, go_package_links(layout)):
        is_bouncing = ".requires/" in link
        message = "it is the Go package's"
        severity = Severity.RISK
        if is_bouncing:
            message = "a restart of that unit stops the running node"
            severity = Severity.BROKEN
        hint = f"{examined.repairing('apply')} removes it"
        if examined.manifest.parts:
            hint += f"; by hand: rm {link}; systemctl daemon-reload"
        yield DoctorFinding("go-package-link", link, message, hint, severity)
    gates = {*layout.units.glob("*.service.d/*hostrouting*.conf")}
    unlisted = {*examined.unlisted.files(layout)}
    for path in sorted(gates - {*examined.manifest.files(layout)}):
        if is_masked(path):
            continue  # ``gate`` reports masked drop-ins
        gate = layout.relative(path)
        message = (
            "a gate that isn't in the manifest: it holds its unit back with scripts that may be "
            "gone"
        )
        hint = f"rm {gate}; systemctl daemon-reload"
        if path in unlisted:
            hint = examined.removing
        yield DoctorFinding("stale-gate", gate, message, hint, Severity.RISK)
    for part in CONFIGURED:
        yield from stale_files(examined, part)
    yield from _printed(examined)


def _printed(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Yield a finding if only what ``fix --format ip`` printed is left.

    Of an installed host, the check ``verdict`` has a finding.
    """
    if examined.host.is_image or examined.has_installation:
        return
    if message := about_printed(printed_on(examined.host)):
        hint = "hostrouting check says how to make it last; to delete it: hostrouting remove"
        yield DoctorFinding("not-lasting", examined.consumer, message, hint, Severity.RISK)


def agents(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that no other program manages our files."""
    if any(examined.layout.followed(f"{folder}/{_AGENT}").exists() for folder in UNIT_PATH):
        message = (
            "AKSFlexNode's own agent knows hostRouting too: "
            "it writes scripts and units of these names, and has the consumer require them"
        )
        hint = "use only one of the two: leave hostRouting out of the agent's config"
        yield DoctorFinding("another-agent", _AGENT, message, hint, Severity.RISK)


def tools(examined: ExaminedHost) -> Iterator[DoctorFinding]:
    """Check that the programs used by the scripts exist, and that /bin/bash really is bash."""
    if has_no_programs(examined):
        return
    missing = list(missing_tools(examined, _TOOLS, "the scripts"))
    yield from missing
    # The programs of an image can't be run on the build host.
    is_looked_for = examined.host.is_image or "bash" in {finding.subject for finding in missing}
    if not is_looked_for and not _is_bash(examined):
        message = (
            "another shell is in its place, and the scripts fail in it: no start is let through"
        )
        yield DoctorFinding("tool-missing", "bash", message, f"install {_TOOLS['bash']}")


def _is_bash(examined: ExaminedHost) -> bool:
    """Return whether the scripts' interpreter sets ``BASH_VERSION``."""
    program = examined.layout.of("/bin/bash")
    try:
        asked = examined.scope.child(timeout=5).run(
            [str(program), "-pc", 'echo "$BASH_VERSION"'],
            check=False,
        )
    except OSError:
        return False
    return bool(asked.stdout.strip())
