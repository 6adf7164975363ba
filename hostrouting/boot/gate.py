"""Render the gate's drop-ins and its list of scripts, and find settings of units that bypass it.

This module does no I/O.

The gate is a script that systemd runs before each start of the consumer. The gate checks every
start, and can block it. A blocked start appears as a failed unit, and ``Restart=`` retries it. If a
oneshot fails or restarts, a running machine isn't stopped. Dependencies between units can't replace
the gate:

- ``Before=`` in a plain unit has no effect on instances of a template.
- With ``Requires=``, systemd 252 starts the consumer even if the required unit is missing or
  masked. Whenever the required unit is restarted, systemd also restarts the consumer.

The drop-ins are the same whichever parts are installed. Otherwise a reload could remove the command
that systemd is running for a unit. Systemd would then skip the other commands of the same setting.
Only the script list depends on the installed parts, and the gate script rereads the list before
each step. If a reload removes another program's command that systemd is running, systemd skips the
other commands of its setting, too. So the gate's commands are spread over two settings. All lines
differ, because systemd would confuse identical lines and skip the lines between them.

A failing ``ExecCondition=``, for example because of a missing working directory, makes systemd skip
the unit: it reports no error and ignores ``Restart=``. So the gate's ``ExecCondition=`` has the
prefix ``-``, which makes systemd ignore a failure. The gate's ``ExecCondition=`` blocks a start by
not returning; the other lines block a start by failing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping

from hostrouting.boot.layout import RUN_DIR, Layout
from hostrouting.boot.manifest import Manifest

# The drop-in lists both oneshots, whether they are installed or not. A plug-in's oneshots have
# their own drop-in, which never blocks a start.
_ONESHOTS = "static-routes.service check-route-overlap.service"
_SCRIPT = Layout().gate_script
_HOLD = ("ExecCondition", "-+", f"{_SCRIPT} hold")
_AGAIN = ("ExecStartPre", "+", f"{_SCRIPT} again")
_LAST = ("ExecStartPre", "+", f"{_SCRIPT} last")
# The gate script creates this file for a start that passes. A truncated gate script may exit with 0
# too early, so test(1) looks for the file.
_PASS = f"/{RUN_DIR}/passed/${{INVOCATION_ID}}"
_PASSED = ("ExecStartPre", "+", f"/usr/bin/test -f {_PASS} -o -e {Layout().gate_off}")
# systemd ignores a failure of _HOLD, so _AGAIN repeats the check then. An instance's drop-in that
# resets ExecStartPre= removes _AGAIN, which the gate can do without. Such a drop-in doesn't remove
# _LAST and _PASSED, which are in a later drop-in.
_NEEDED = (_HOLD, _LAST, _PASSED)

_HEAD = f"""\
# Written by hostrouting; to uninstall: hostrouting remove
# To let a node start anyway: touch {Layout().gate_off}
"""


def _service(*lines: tuple[str, str, str]) -> str:
    return "[Service]\n" + "".join(f"{key}={prefix}{argv}\n" for key, prefix, argv in lines)


DROP_INS = (
    f"{_HEAD}[Unit]\nWants={_ONESHOTS}\nAfter={_ONESHOTS}\n\n{_service(_HOLD, _AGAIN)}",
    f"{_HEAD}{_service(_LAST, _PASSED)}",
)
"""The texts of the two drop-ins, in the order of ``Layout.gates``."""

# The gate takes up to 20 s to run the scripts of its list. With a start timeout below 25 s, systemd
# may kill the gate before its scripts finish.
START_SECONDS = 25

# The properties that opening_settings needs.
SETTINGS = (
    "SuccessExitStatus",
    "TimeoutStartUSec",
    "Environment",
    "EnvironmentFiles",
    "UnsetEnvironment",
    "RuntimeDirectory",
    "RuntimeDirectoryPreserve",
)

_ONE_NAME = "gives all starts one name: an earlier pass is mistaken for theirs"
# Maps each setting to a harmful pattern and its consequence.
_NAMELESS = {
    "Environment": (r'(^|[ "])INVOCATION_ID=', _ONE_NAME),
    "UnsetEnvironment": (
        r'(^|[ "])INVOCATION_ID\b',
        "removes the name of a pass: no start gets through",
    ),
}

# The exit statuses of a gate that fails. The gate script exits with 255, test(1) with 1, and bash
# with 1 or 2. A script that can't be executed means 126 or 127. systemd's own codes are EXIT_CHDIR
# to EXIT_NUMA_POLICY in its src/basic/exit-status.h. The signals KILL, TERM and ABRT kill the gate.
_ENDS = {"255", "1", "2", "126", "127", *map(str, range(200, 244)), "KILL", "TERM", "ABRT"}


# The list's last line, used to detect truncation.
_END = "end"


def list_text(manifest: Manifest, scripts: Mapping[str, bytes]) -> str:
    """Render the list of scripts that the gate runs.

    Each script is marked as required, or as forgiven if its failure is ignored. Required scripts
    come first, because the forgiven ones might use up the time limit. Each row contains the
    script's checksum. So a new script changes the list, and a gate that is running starts over.

    Args:
        manifest: the manifest, whose parts have the scripts.
        scripts: the scripts' contents by part name. A missing script's row has no checksum.
    """
    gated = {name: part for name, part in manifest.parts.items() if part.is_gated}
    rows = []
    for name in sorted(gated, key=lambda name: not gated[name].is_blocking):
        how = "required" if gated[name].is_blocking else "forgiven"
        checksum = "-"
        if name in scripts:
            checksum = hashlib.sha256(scripts[name]).hexdigest()[:16]
        rows.append(f"{Layout().script(name)} {how} {checksum}\n")
    return "".join(rows) + f"{_END}\n"


def with_other_scripts(text: str, places: Mapping[str, str]) -> str:
    """Return a script list with some of its paths replaced.

    Args:
        text: the list as it is.
        places: replacement paths, keyed by the original path.
    """
    rows = []
    for line in text.splitlines():
        script, *more = line.split(" ")
        place = places.get(script, script)
        rows.append(" ".join([place, *more]) + "\n")
    return "".join(rows)


_COMMAND = re.compile(r"\{ path=\S* ; argv\[\]=(?P<argv>.*?) ; flags=(?P<flags>.*?) ;")


def missing_commands(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the gate's commands that a unit lacks or overrides.

    Args:
        properties: the properties ``ExecConditionEx`` and ``ExecStartPreEx`` as printed by
            ``systemctl show``.

    Returns:
        The missing lines, and those whose prefix (``+`` or ``-``) was changed.
    """
    return tuple(
        f"{key}={prefix}{argv}"
        for key, prefix, argv in _NEEDED
        if not _has_command(prefix, argv, properties[f"{key}Ex"])
    )


def _has_command(prefix: str, argv: str, commands: str) -> bool:
    for match in _COMMAND.finditer(commands):
        flags = match["flags"].split()
        has_prefix = "privileged" in flags and ("ignore-failure" in flags) == ("-" in prefix)
        if match["argv"] == argv and has_prefix:
            return True
    return False


def _naming_settings(properties: Mapping[str, str], environment: Collection[str]) -> Iterator[str]:
    """Yield the settings that change INVOCATION_ID. The gate identifies a start by this ID."""
    for key, (pattern, consequence) in _NAMELESS.items():
        if re.search(pattern, properties[key]):
            yield f"{key}=INVOCATION_ID {consequence}"
    if "INVOCATION_ID" in environment:
        yield f"EnvironmentFile= sets INVOCATION_ID, which {_ONE_NAME}"


def opening_settings(
    properties: Mapping[str, str],
    *,
    is_strict: bool,
    environment: Collection[str] = (),
) -> Iterator[str]:
    """Yield the settings that let a unit start although the gate fails, or that prevent each start.

    Args:
        properties: the properties listed in ``SETTINGS`` as printed by ``systemctl show``.
        is_strict: whether a failed check blocks the unit. Otherwise, any start timeout is fine.
        environment: the names of the variables that the unit's environment files set.

    Yields:
        A description of each setting.
    """
    statuses = properties["SuccessExitStatus"].split()
    forgiven = [status for status in statuses if status.removeprefix("SIG") in _ENDS]
    if forgiven:
        yield f"SuccessExitStatus={' '.join(forgiven)} treats a failing gate as a successful one"
    seconds = seconds_of(properties["TimeoutStartUSec"])
    if is_strict and 0 < seconds < START_SECONDS:
        yield (
            f"TimeoutStartSec={seconds:g} ends the gate, which may take 20 s; "
            f"give it {START_SECONDS} or more"
        )
    yield from _naming_settings(properties, environment)
    is_ours = RUN_DIR.name in properties["RuntimeDirectory"].split()
    if is_ours and properties["RuntimeDirectoryPreserve"] != "yes":
        yield (
            f"RuntimeDirectory={RUN_DIR.name} removes the files of the gate "
            "and of a trial of routes at each stop"
        )


_SPAN = re.compile(r"([0-9.]+)(us|ms|s|min|h|d|w|month|y)?(?=[0-9. ]|$)")
_SECONDS = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1,
    "": 1,
    "min": 60,
    "h": 3600,
    "d": 86400,
    "w": 604800,
    "month": 2629800,
    "y": 31557600,
}


def seconds_of(span: str) -> float:
    """Convert a systemd time span (see systemd.time(7)) to seconds."""
    if span == "infinity":
        return float("inf")
    parts = _SPAN.findall(span)
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)
