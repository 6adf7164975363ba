"""Is everything there for the next boot, and nothing else?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostrouting.boot import files
from hostrouting.boot.examination import Fault, Severity, missing_tools, read_folder, resolve_link, stale_files
from hostrouting.boot.installation import reference_links
from hostrouting.boot.manifest import CHECK, ROUTES, WATCH
from hostrouting.boot.parts import CONFIGURED, wanted_files, wanted_parts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hostrouting.boot.examination import ExaminedHost
    from hostrouting.boot.parts import BootFile


__all__ = ["agents", "installed", "leftovers", "python", "rendered", "tools", "units"]

_EXECUTABLE = 0o111
_TOOLS = {
    "bash": "bash",
    "ip": "iproute2",
    "awk": "mawk, gawk or busybox",
    "flock": "util-linux",
    "timeout": "coreutils",
}


def installed(examined: ExaminedHost) -> Iterator[Fault]:
    """The manifest names what is asked for."""
    manifest = examined.manifest
    subject = examined.name(examined.layout.manifest)
    wanted = examined.wanted.parts
    if not manifest.parts and (wanted or examined.given is None):
        yield Fault("not-installed", subject, "nothing is installed: no node is held back", examined.command("apply"))
        return
    if set(wanted) != set(manifest.parts):
        there, asked = (" and ".join(names) or "nothing" for names in (manifest.parts, wanted))
        yield Fault(
            "another-config", subject, f"CONFIG asks for {asked}, and {there} is installed", examined.command("apply")
        )
    elif wanted and examined.config.consumer != manifest.consumer:
        message = f"CONFIG holds {examined.config.consumer} back, and what is installed {manifest.consumer}"
        yield Fault("another-config", subject, message, examined.command("apply"))
    if manifest.former:
        message = f"a run was stopped while the gate moved: it is still to be removed from {' '.join(manifest.former)}"
        yield Fault("interrupted", subject, message, examined.command("apply"), Severity.RISK)


def rendered(examined: ExaminedHost) -> Iterator[Fault]:
    """Every file holds what the config renders, with its mode."""
    there = set(examined.manifest.files(examined.layout))
    for file in examined.files:
        if examined.given is not None or file.path in there:
            yield from _compare(examined, file)


def _compare(examined: ExaminedHost, file: BootFile) -> Iterator[Fault]:
    name = examined.name(file.path)
    if file.path.suffix == ".service" and resolve_link(examined.layout, name).end == "/dev/null":
        return  # masked: ``units`` tells of it
    state = files.read_state(file.path)
    if state is None:
        yield Fault("file-missing", name, "it isn't there", examined.command("apply"))
        return
    content, mode = state
    # Which Python the watcher is run by is ``python``'s to look at: hardly ever the one that runs this.
    there, wanted = (_EXEC_START.sub("ExecStart=", text) for text in (content.decode(errors="replace"), file.text))
    if there != wanted if file.path == examined.layout.unit(WATCH) else content != file.text.encode():
        if content.decode(errors="replace") == _as_installed(examined).get(file.path):
            message = "it was rendered from another config"
        else:
            message = "it has been edited, or another version of hostrouting has written it"
        yield Fault(
            "file-differs",
            name,
            message,
            f"{examined.command('plan')} shows the difference, {examined.command('apply')} ends it",
        )
    if mode & _EXECUTABLE != file.mode & _EXECUTABLE:
        message = f"its mode is {mode:04o}, not {file.mode:04o}: it can't be run"
        yield Fault("file-mode", name, message, f"chmod {file.mode:04o} {name}")
    elif mode & ~file.mode:
        message = f"its mode is {mode:04o}, not {file.mode:04o}"
        yield Fault("file-mode", name, message, f"chmod {file.mode:04o} {name}", Severity.RISK)


def _as_installed(examined: ExaminedHost) -> dict[Path, str]:
    """The texts of the files of host routing, as the installed parts were rendered."""
    parts = wanted_parts(examined.manifest.config, examined.layout)
    return {file.path: file.text for file in wanted_files(examined.layout, examined.manifest, parts)}


def units(examined: ExaminedHost) -> Iterator[Fault]:
    """The oneshots are there, start at boot, and systemd has read them."""
    layout = examined.layout
    for name in examined.gated:
        unit = f"{name}.service"
        shown = examined.units.show(unit, "LoadState", "NeedDaemonReload")
        waits = "the gate still judges, but at boot nothing waits for the network"
        if shown["LoadState"] == "masked":
            yield Fault(
                "masked",
                unit,
                f"it is masked; {waits}",
                f"systemctl unmask {unit}; {examined.command('apply')}",
                Severity.RISK,
            )
        elif not examined.units.is_enabled(unit):
            yield Fault(
                "not-enabled", unit, f"it doesn't start at boot; {waits}", f"systemctl enable {unit}", Severity.RISK
            )
        if shown["NeedDaemonReload"] == "yes":
            message = "systemd hasn't read what its files say now"
            yield Fault("not-reloaded", unit, message, "systemctl daemon-reload", Severity.RISK)
    if WATCH in examined.manifest.parts and not examined.is_watched:
        message = "it is installed and doesn't run: routes that get lost aren't put back, and the markers grow old"
        yield Fault("watcher-down", f"{WATCH}.service", message, f"journalctl -u {WATCH}", Severity.RISK)
    folders = [folder for kind in ("requires", "wants") for folder in sorted(layout.units.glob(f"*.{kind}"))]
    for link in (folder / f"{name}.service" for folder in folders for name in (ROUTES, CHECK)):
        path = examined.name(link)
        if link.is_symlink() and not (led := resolve_link(layout, path)).is_there:
            message = f"it leads to {led.end}, which isn't there"
            remedy = f"{examined.command('apply')}, or, if {link.name} isn't wanted: rm {path}; systemctl daemon-reload"
            yield Fault("dangling-link", path, message, remedy, Severity.RISK)


def leftovers(examined: ExaminedHost) -> Iterator[Fault]:
    """Nothing is left of the reference's installation, of earlier versions, or of another consumer."""
    layout, manifest = examined.layout, examined.manifest
    for link in map(examined.name, reference_links(layout)):
        is_bouncing = ".requires/" in link
        message = "a restart of that unit stops the running node" if is_bouncing else "it is the reference's"
        remedy = f"{examined.command('apply')} removes it; by hand: {_removal(link)}"
        yield Fault("reference-link", link, message, remedy, Severity.BROKEN if is_bouncing else Severity.RISK)
    gates = {layout.gate(name) for name in (manifest.consumer, *manifest.former)} | set(manifest.files(layout))
    for gate in map(examined.name, sorted(set(layout.units.glob("*.service.d/*hostrouting*.conf")) - gates)):
        message = "a gate that no installation knows of: it holds its unit back by scripts that may be gone"
        yield Fault("stale-gate", gate, message, _removal(gate), Severity.RISK)
    known = {layout.manifest, *manifest.files(layout)}
    for part in CONFIGURED:
        yield from stale_files(examined, part)
    for path in sorted(known):
        for litter in map(examined.name, files.litter(path)):
            message = "a run that was killed has left it behind"
            yield Fault("litter", litter, message, f"{examined.command('apply')} removes it", Severity.RISK)


def _removal(path: str) -> str:
    return f"rm {path}; systemctl daemon-reload"


_AGENT = "aks-flex-node-agent.service"


def agents(examined: ExaminedHost) -> Iterator[Fault]:
    """Nobody else writes our files or runs our scripts."""
    folders = ("/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system")
    names = dict.fromkeys((ROUTES, CHECK, *examined.gated))
    scripts = [examined.name(examined.layout.script(name)) for name in names]
    ours = {examined.layout.unit(name) for name in names}
    for path, text in read_folder(examined.layout, *(f"{folder}/*.service" for folder in folders)).items():
        if path.name == _AGENT:
            yield Fault(
                "another-agent",
                path.name,
                "AKSFlexNode's own agent knows hostRouting too and writes scripts and units of these names",
                "let one of the two do it: leave hostRouting out of the config that the agent reads",
                Severity.RISK,
            )
        elif path not in ours and (run := [script for script in scripts if script in text]):
            message = f"it runs {' and '.join(run)} too"
            remedy = f"look at: systemctl cat {path.name}; the oneshots and the gate do it"
            yield Fault("another-agent", path.name, message, remedy, Severity.RISK)


def tools(examined: ExaminedHost) -> Iterator[Fault]:
    """What the scripts need at boot is there."""
    yield from missing_tools(examined, _TOOLS, "the scripts")


_CONSOLE_SCRIPTS = ("/usr/local/bin/hostrouting", "/usr/bin/hostrouting")


def python(examined: ExaminedHost) -> Iterator[Fault]:
    """The Python environment that something here names is there."""
    layout = examined.layout
    watch = files.read_text(layout.unit(WATCH)) or ""
    if match := _EXEC_START.search(watch):
        yield from _gone(examined, _unquoted(match), f"{WATCH}.service", "routes that get lost aren't put back")
    for path in _CONSOLE_SCRIPTS:
        if not layout.of(path).is_symlink() and not layout.of(path).exists():
            continue
        led = resolve_link(layout, path)
        if not led.is_there:
            yield from _gone(examined, led.end, path, "the command can't be run")
        elif match := re.match(r"#!(\S+)", files.read_text(layout.of(led.end)) or ""):
            yield from _gone(examined, match[1], path, "the command can't be run")


# The first word, systemd.syntax(7): quoted, with backslashes and doubled percent signs, or plain.
_EXEC_START = re.compile(r'^ExecStart=[-@:+!]*(?:"((?:[^"\\]|\\.)*)"|(\S+))', re.MULTILINE)


def _unquoted(match: re.Match[str]) -> str:
    return re.sub(r"\\(.)", r"\1", match[1] or match[2]).replace("%%", "%")


def _gone(examined: ExaminedHost, program: str, user: str, so: str) -> Iterator[Fault]:
    if resolve_link(examined.layout, program).is_there:
        return
    yield Fault(
        "python-gone",
        program,
        f"it isn't there, and {user} needs it: {so}; boot and the gate don't need it, they are bash, iproute2 and awk",
        f"install hostrouting again, and from there: {examined.command('apply')}",
        Severity.RISK,
    )
