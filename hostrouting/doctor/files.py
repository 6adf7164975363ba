"""Is everything there for the next boot, and nothing else?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostrouting.boot import files
from hostrouting.boot.examination import Ailment, Severity
from hostrouting.boot.gate import GATED, PROBE
from hostrouting.boot.installation import reference_links
from hostrouting.boot.layout import SEARCH_PATH
from hostrouting.boot.parts import PARTS, WATCH, wanted_parts
from hostrouting.doctor.patient import read_folder, resolve_link

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.boot.parts import BootFile
    from hostrouting.doctor.patient import Patient

__all__ = ["agents", "installed", "leftovers", "python", "rendered", "tools", "units"]

_EXECUTABLE = 0o111
_PATH = SEARCH_PATH.split(":")
_TOOLS = {
    "bash": "bash",
    "ip": "iproute2",
    "awk": "mawk, gawk or busybox",
    "flock": "util-linux",
    "timeout": "coreutils",
}
_PROBE_TOOLS = {"nft": "nftables", "unshare": "util-linux"}


def installed(patient: Patient) -> Iterator[Ailment]:
    """The manifest names what is asked for."""
    manifest = patient.manifest
    subject = patient.name(patient.layout.manifest)
    wanted = manifest.parts
    if patient.given is not None:
        wanted = {part.name: part.is_blocking for part in wanted_parts(patient.given, patient.layout)}
        wanted |= patient.neighbours
    if not manifest.parts and (wanted or patient.given is None):
        yield Ailment("not-installed", subject, "nothing is installed: no node is held back", patient.command("apply"))
        return
    if set(wanted) != set(manifest.parts):
        there, asked = (" and ".join(names) or "nothing" for names in (manifest.parts, wanted))
        yield Ailment(
            "another-config", subject, f"CONFIG asks for {asked}, and {there} is installed", patient.command("apply")
        )
    elif wanted and patient.config.consumer != manifest.consumer:
        message = f"CONFIG holds {patient.config.consumer} back, and what is installed {manifest.consumer}"
        yield Ailment("another-config", subject, message, patient.command("apply"))
    if manifest.former:
        message = f"a run was stopped while the gate moved: it is still to be removed from {' '.join(manifest.former)}"
        yield Ailment("interrupted", subject, message, patient.command("apply"), Severity.RISK)


def rendered(patient: Patient) -> Iterator[Ailment]:
    """Every file holds what the config renders, with its mode."""
    expected = {file.path for file in patient.files}
    for file in patient.files:
        if patient.given is not None or file.path in patient.manifest.files(patient.layout):
            yield from _compare(patient, file)
    for name, config in patient.read_back.items():
        path = patient.layout.script(name)
        if config is None and path not in expected:
            yield from _not_ours(patient, name)


def _compare(patient: Patient, file: BootFile) -> Iterator[Ailment]:
    name = patient.name(file.path)
    if file.path.suffix == ".service" and resolve_link(patient.layout, name).end == "/dev/null":
        return  # masked: ``units`` tells of it
    state = files.read_state(file.path)
    if state is None:
        yield Ailment("file-missing", name, "it isn't there", patient.command("apply"))
        return
    content, mode = state
    # Which Python the watcher is run by is ``python``'s to look at: hardly ever the one that runs this.
    there, wanted = (_EXEC_START.sub("ExecStart=", text) for text in (content.decode(errors="replace"), file.text))
    if there != wanted if file.path == patient.layout.unit(WATCH) else content != file.text.encode():
        edited = [part for part in patient.read_back if patient.layout.script(part) == file.path]
        if edited and patient.read_back[edited[0]] is not None:
            message = "it was rendered from another config"
        else:
            message = "it has been edited, or another version of hostrouting has written it"
        yield Ailment(
            "file-differs",
            name,
            message,
            f"{patient.command('plan')} shows the difference, {patient.command('apply')} ends it",
        )
    if mode & _EXECUTABLE != file.mode & _EXECUTABLE:
        message = f"its mode is {mode:04o}, not {file.mode:04o}: it can't be run"
        yield Ailment("file-mode", name, message, f"chmod {file.mode:04o} {name}")
    elif mode & ~file.mode:
        message = f"its mode is {mode:04o}, not {file.mode:04o}"
        yield Ailment("file-mode", name, message, f"chmod {file.mode:04o} {name}", Severity.RISK)


def _not_ours(patient: Patient, part: str) -> Iterator[Ailment]:
    """Without a config a script that can't be read back is all that is known."""
    name, text = patient.name(patient.layout.script(part)), files.read_text(patient.layout.script(part))
    if text is None:
        yield Ailment("file-missing", name, "it isn't there", patient.command("apply"))
    else:
        message = (
            "this version renders no such text: it has been edited, or another version of hostrouting has written it"
        )
        yield Ailment("file-differs", name, message, patient.command("apply"))


def units(patient: Patient) -> Iterator[Ailment]:
    """The oneshots are there, start at boot, and systemd has read them."""
    layout = patient.layout
    for name in patient.parts:
        unit = f"{name}.service"
        shown = patient.units.show(unit, "LoadState", "NeedDaemonReload")
        waits = "the gate still judges, but at boot nothing waits for the network"
        if shown["LoadState"] == "masked":
            yield Ailment(
                "masked",
                unit,
                f"it is masked; {waits}",
                f"systemctl unmask {unit}; {patient.command('apply')}",
                Severity.RISK,
            )
        elif not patient.units.is_enabled(unit):
            yield Ailment(
                "not-enabled", unit, f"it doesn't start at boot; {waits}", f"systemctl enable {unit}", Severity.RISK
            )
        if shown["NeedDaemonReload"] == "yes":
            message = "systemd hasn't read what its files say now"
            yield Ailment("not-reloaded", unit, message, "systemctl daemon-reload", Severity.RISK)
    if WATCH in patient.manifest.parts and not patient.is_watched:
        message = "it is installed and doesn't run: routes that get lost aren't put back, and the markers grow old"
        yield Ailment("watcher-down", f"{WATCH}.service", message, f"journalctl -u {WATCH}", Severity.RISK)
    folders = [folder for kind in ("requires", "wants") for folder in sorted(layout.units.glob(f"*.{kind}"))]
    for link in (folder / f"{name}.service" for folder in folders for name in GATED):
        path = patient.name(link)
        if link.is_symlink() and not (led := resolve_link(layout, path)).is_there:
            message = f"it leads to {led.end}, which isn't there"
            remedy = f"{patient.command('apply')}, or, if {link.name} isn't wanted: rm {path}; systemctl daemon-reload"
            yield Ailment("dangling-link", path, message, remedy, Severity.RISK)


def leftovers(patient: Patient) -> Iterator[Ailment]:
    """Nothing is left of the reference's installation, of earlier versions, or of another consumer."""
    layout, manifest = patient.layout, patient.manifest
    for link in map(patient.name, reference_links(layout)):
        is_bouncing = ".requires/" in link
        message = "a restart of that unit stops the running node" if is_bouncing else "it is the reference's"
        remedy = f"{patient.command('apply')} removes it; by hand: {_removal(link)}"
        yield Ailment("reference-link", link, message, remedy, Severity.BROKEN if is_bouncing else Severity.RISK)
    gates = {layout.gate(name) for name in (manifest.consumer, *manifest.former)} | set(manifest.files(layout))
    for gate in map(patient.name, sorted(set(layout.units.glob("*.service.d/*hostrouting*.conf")) - gates)):
        message = "a gate that no installation knows of: it holds its unit back by scripts that may be gone"
        yield Ailment("stale-gate", gate, message, _removal(gate), Severity.RISK)
    known = {layout.manifest, *manifest.files(layout)}
    for part in PARTS:
        # The watcher may be stopped; as for a oneshot, machines of older installations may still require it.
        disable = "systemctl disable --now" if part == WATCH else "systemctl disable"
        for path in (layout.unit(part), layout.watch_config if part == WATCH else layout.script(part)):
            if path not in known and path.exists() and not path.is_symlink():
                message = "no installation knows of it: the reference, or an earlier run, has left it behind"
                remedy = f"{disable} {part}.service; {_removal(patient.name(path))}"
                yield Ailment("stale-file", patient.name(path), message, remedy, Severity.RISK)
    for path in sorted(known):
        for litter in map(patient.name, files.litter(path)):
            message = "a run that was killed has left it behind"
            yield Ailment("litter", litter, message, f"{patient.command('apply')} removes it", Severity.RISK)


def _removal(path: str) -> str:
    return f"rm {path}; systemctl daemon-reload"


_AGENT = "aks-flex-node-agent.service"


def agents(patient: Patient) -> Iterator[Ailment]:
    """Nobody else writes our files or runs our scripts."""
    folders = ("/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system")
    scripts = [patient.name(patient.layout.script(name)) for name in GATED]
    ours = {patient.layout.unit(name) for name in GATED}
    for path, text in read_folder(patient.layout, *(f"{folder}/*.service" for folder in folders)).items():
        if path.name == _AGENT:
            yield Ailment(
                "another-agent",
                path.name,
                "AKSFlexNode's own agent knows hostRouting too and writes scripts and units of these names",
                "let one of the two do it: leave hostRouting out of the config that the agent reads",
                Severity.RISK,
            )
        elif path not in ours and (run := [script for script in scripts if script in text]):
            message = f"it runs {' and '.join(run)} too"
            remedy = f"look at: systemctl cat {path.name}; the oneshots and the gate do it"
            yield Ailment("another-agent", path.name, message, remedy, Severity.RISK)


def tools(patient: Patient) -> Iterator[Ailment]:
    """What the scripts need at boot is there."""
    for tool, package in (_TOOLS | (_PROBE_TOOLS if PROBE in patient.parts else {})).items():
        # The scripts' first line names it; everything else is looked for.
        places = ("/bin/bash", "/usr/bin/bash") if tool == "bash" else tuple(f"{folder}/{tool}" for folder in _PATH)
        if not any(patient.layout.of(place).is_symlink() or patient.layout.of(place).exists() for place in places):
            message = f"it isn't in {':'.join(_PATH)}: the scripts fail without it"
            yield Ailment("tool-missing", tool, message, f"install {package}")


_CONSOLE_SCRIPTS = ("/usr/local/bin/hostrouting", "/usr/bin/hostrouting")


def python(patient: Patient) -> Iterator[Ailment]:
    """The Python environment that something here names is there."""
    layout = patient.layout
    watch = files.read_text(layout.unit(WATCH)) or ""
    if match := _EXEC_START.search(watch):
        yield from _gone(patient, _unquoted(match), f"{WATCH}.service", "routes that get lost aren't put back")
    for path in _CONSOLE_SCRIPTS:
        if not layout.of(path).is_symlink() and not layout.of(path).exists():
            continue
        led = resolve_link(layout, path)
        if not led.is_there:
            yield from _gone(patient, led.end, path, "the command can't be run")
        elif match := re.match(r"#!(\S+)", files.read_text(layout.of(led.end)) or ""):
            yield from _gone(patient, match[1], path, "the command can't be run")


# The first word, systemd.syntax(7): quoted, with backslashes and doubled percent signs, or plain.
_EXEC_START = re.compile(r'^ExecStart=[-@:+!]*(?:"((?:[^"\\]|\\.)*)"|(\S+))', re.MULTILINE)


def _unquoted(match: re.Match[str]) -> str:
    return re.sub(r"\\(.)", r"\1", match[1] or match[2]).replace("%%", "%")


def _gone(patient: Patient, program: str, user: str, so: str) -> Iterator[Ailment]:
    if resolve_link(patient.layout, program).is_there:
        return
    yield Ailment(
        "python-gone",
        program,
        f"it isn't there, and {user} needs it: {so}; boot and the gate don't need it, they are bash, iproute2 and awk",
        f"install hostrouting again, and from there: {patient.command('apply')}",
        Severity.RISK,
    )
