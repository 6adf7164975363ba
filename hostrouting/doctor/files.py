"""Is everything there for the next boot, and nothing else?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostrouting.boot import files
from hostrouting.boot.examination import Fault, Severity, missing_tools, resolve_link, stale_files
from hostrouting.boot.installation import reference_links
from hostrouting.boot.parts import CONFIGURED, wanted_files, wanted_parts
from hostrouting.boot.unit_files import UNIT_PATH

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hostrouting.boot.examination import ExaminedHost
    from hostrouting.boot.parts import BootFile


__all__ = ["agents", "installed", "leftovers", "rendered", "tools", "units"]

_EXECUTABLE = 0o111

# Which Python is named is settled by who installs: it is hardly ever the one that runs this, and an image's has none.
_PYTHON = re.compile(r"^(?:readonly PYTHON=.*$|ExecStart=.* (?=-P -m hostrouting ))", re.MULTILINE)

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
    there = _without_python(content.decode("utf-8", "surrogateescape"))
    if there != _without_python(file.text):
        if there == _without_python(_as_installed(examined).get(file.path, "")):
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


def _without_python(text: str) -> str:
    return _PYTHON.sub("", text)


def _as_installed(examined: ExaminedHost) -> dict[Path, str]:
    """The texts of the files of host routing, as the installed parts were rendered."""
    parts = wanted_parts(examined.manifest.config, examined.layout)
    return {file.path: file.text for file in wanted_files(examined.layout, examined.manifest, parts)}


def units(examined: ExaminedHost) -> Iterator[Fault]:
    """The oneshots are there, start at boot, and systemd has read them."""
    for name in examined.gated:
        unit = f"{name}.service"
        shown = examined.units.show(unit, "LoadState", "NeedDaemonReload", "DropInPaths")
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
        elif shown["DropInPaths"]:
            message = f"it is changed by {shown['DropInPaths']}; if it doesn't run its script, {waits}"
            yield Fault("overridden", unit, message, f"look at: systemctl cat {unit}", Severity.RISK)


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
        if resolve_link(layout, gate).end == "/dev/null":
            continue  # it takes ours away: ``gate`` tells of it
        message = "a gate that no installation knows of: it holds its unit back by scripts that may be gone"
        yield Fault("stale-gate", gate, message, _removal(gate), Severity.RISK)
    for part in CONFIGURED:
        yield from stale_files(examined, part)


def _removal(path: str) -> str:
    return f"rm {path}; systemctl daemon-reload"


_AGENT = "aks-flex-node-agent.service"


def agents(examined: ExaminedHost) -> Iterator[Fault]:
    """Nobody else writes our files."""
    paths = [f"{folder}/{_AGENT}" for folder in UNIT_PATH]
    if any(examined.layout.of(path).exists() for path in paths):
        yield Fault(
            "another-agent",
            _AGENT,
            "AKSFlexNode's own agent knows hostRouting too: it writes scripts and units of these names, and has the "
            "consumer require them",
            "let one of the two do it: leave hostRouting out of the config that the agent reads",
            Severity.RISK,
        )


def tools(examined: ExaminedHost) -> Iterator[Fault]:
    """What the scripts need at boot is there, and bash is bash."""
    missing = list(missing_tools(examined, _TOOLS, "the scripts"))
    yield from missing
    if "bash" not in {fault.subject for fault in missing} and not _is_bash(examined):
        message = "another shell is in its place, and the scripts fail in it: no start is let through"
        yield Fault("tool-missing", "bash", message, f"install {_TOOLS['bash']}")


def _is_bash(examined: ExaminedHost) -> bool:
    """Whether what the scripts' first line names says of itself that it is bash."""
    program = examined.layout.of(resolve_link(examined.layout, "/bin/bash").end)
    try:
        said = examined.scope.child(timeout=5).run([str(program), "-pc", 'echo "$BASH_VERSION"'], check=False)
        return bool(said.stdout.strip())
    except OSError:
        return False
