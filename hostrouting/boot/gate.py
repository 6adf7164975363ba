"""Render the gate's drop-ins and list, and check whether a unit's settings keep the gate effective.

All functions are pure.

The design has these reasons. ``Before=`` in a plain unit orders nothing against a template. With ``Requires=``, systemd
252 starts the consumer although the required unit is missing or masked, and restarts the machine whenever that unit is
restarted. A script that the consumer itself runs judges every start and can block it. A blocked start shows as a failed
unit, and ``Restart=`` retries it. Nothing that happens to the oneshots stops a running machine.

The drop-ins are the same whatever is installed. If a reload removes the command that systemd is running from a unit,
systemd goes straight to ``ExecStart=``. So only the list changes, and the script reads it again before each step. The
commands are in two lists, because a command that vanishes takes the rest of its own list with it. No two lines are
equal, because systemd would confuse them and skip the lines between.

The ``-`` of the first line makes systemd ignore its failure. If an ``ExecCondition=`` fails, even only because its
working directory appears late, systemd skips the unit, without an error and without ``Restart=``. So that line refuses
a start by not ending, and the other lines refuse it by failing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping

from hostrouting.boot.layout import RUN_DIR, Layout
from hostrouting.boot.manifest import Manifest

# The same whether they are installed or not. A plug-in's oneshots are in another drop-in, which never blocks a start.
_ONESHOTS = "static-routes.service check-route-overlap.service"
_SCRIPT = Layout().gate_script
_HOLD = ("ExecCondition", "-+", f"{_SCRIPT} hold")
_AGAIN = ("ExecStartPre", "+", f"{_SCRIPT} again")
_LAST = ("ExecStartPre", "+", f"{_SCRIPT} last")
# This isn't one of our scripts, because a truncated script would succeed without leaving the file.
_PASS = f"/{RUN_DIR}/passed/${{INVOCATION_ID}}"
_PASSED = ("ExecStartPre", "+", f"/usr/bin/test -f {_PASS} -o -e {Layout().gate_off}")
# An instance's own drop-in may empty the second list, which catches the ignored failures of the first.
_NEEDED = (_HOLD, _LAST, _PASSED)

_HEAD = f"""\
# Written by hostrouting; taken back by: hostrouting remove
# To let a node start all the same: touch {Layout().gate_off}
"""


def _service(*lines: tuple[str, str, str]) -> str:
    return "".join(("[Service]\n", *(f"{key}={prefix}{argv}\n" for key, prefix, argv in lines)))


DROP_INS = (
    f"{_HEAD}[Unit]\nWants={_ONESHOTS}\nAfter={_ONESHOTS}\n\n{_service(_HOLD, _AGAIN)}",
    f"{_HEAD}{_service(_LAST, _PASSED)}",
)
"""The texts of the two drop-ins, in the order of ``Layout.gates``."""

# The gate ends within 20 s. If a consumer has a shorter time-out, systemd ends the gate earlier.
START_SECONDS = 25

# The properties that opening_settings needs.
SETTINGS = (
    *("SuccessExitStatus", "TimeoutStartUSec", "Environment", "UnsetEnvironment"),
    *("RuntimeDirectory", "RuntimeDirectoryPreserve"),
)

# For each setting, a pattern that is a problem, and what follows from it.
_NAMELESS = {
    "Environment": (r'(^|[ "])INVOCATION_ID=', "gives all starts one name: an earlier pass is mistaken for theirs"),
    "UnsetEnvironment": (r'(^|[ "])INVOCATION_ID\b', "removes the name of a pass: no start gets through"),
}

# The ways in which the gate may end: its own 255, test's 1, bash's codes, those of a script that can't be run, those of
# systemd (EXIT_CHDIR to EXIT_NUMA_POLICY in its src/basic/exit-status.h), and the signals that kill it.
_ENDS = {"255", "1", "2", "126", "127", *map(str, range(200, 244)), "KILL", "TERM", "ABRT"}


# The last line of the list; a truncated list lacks it.
_END = "end"


def list_text(manifest: Manifest, scripts: Mapping[str, bytes]) -> str:
    """Render the list of the scripts that the gate runs, with whether a script's failure blocks the consumer.

    Scripts that can block the consumer come first, because any other script may use up the time. Each row has a
    checksum. So a changed script changes the list, which makes a running gate start over.

    Args:
        manifest: the manifest of the installation.
        scripts: the content of each part's script, by the part's name; a part's script may be missing.
    """
    rows = []
    for name, part in sorted(manifest.parts.items(), key=lambda each: not each[1].is_blocking):
        if part.is_gated:
            how = "required" if part.is_blocking else "forgiven"
            checksum = hashlib.sha256(scripts[name]).hexdigest()[:16] if name in scripts else "-"
            rows.append(f"{Layout().script(name)} {how} {checksum}")
    return "".join(f"{row}\n" for row in (*rows, _END))


def with_other_scripts(text: str, places: Mapping[str, str]) -> str:
    """Return a list in which some of the scripts have other paths.

    Args:
        text: the text of the list.
        places: the path of the script to run instead, by its original path.
    """
    rows = [line.split(" ") for line in text.splitlines()]
    return "".join(f"{' '.join([places.get(script, script), *more])}\n" for script, *more in rows)


_COMMAND = re.compile(r"\{ path=\S* ; argv\[\]=(?P<argv>.*?) ; flags=(?P<flags>.*?) ;")


def missing_commands(shown: Mapping[str, str]) -> tuple[str, ...]:
    """Return the commands of the gate that a unit lacks or overrides.

    Args:
        shown: the properties ``ExecConditionEx`` and ``ExecStartPreEx`` as ``systemctl show`` prints them.

    Returns:
        The lines that are missing, or have lost their privileges or their effect.
    """
    return tuple(
        f"{key}={prefix}{argv}" for key, prefix, argv in _NEEDED if not _is_held(prefix, argv, shown[f"{key}Ex"])
    )


def _is_held(prefix: str, argv: str, commands: str) -> bool:
    flags = [match["flags"].split() for match in _COMMAND.finditer(commands) if match["argv"] == argv]
    return any("privileged" in words and ("ignore-failure" in words) == ("-" in prefix) for words in flags)


def opening_settings(shown: Mapping[str, str], *, is_strict: bool) -> Iterator[str]:
    """Yield the settings that let a unit start although the gate fails, or fail although the gate admits it.

    Args:
        shown: the properties ``SETTINGS`` as ``systemctl show`` prints them.
        is_strict: whether a failed check blocks the unit; otherwise the gate works with a shorter time-out too.

    Yields:
        A clause for each such setting.
    """
    forgiven = [word for word in shown["SuccessExitStatus"].split() if word.removeprefix("SIG") in _ENDS]
    if forgiven:
        yield f"SuccessExitStatus={' '.join(forgiven)} treats a failing gate as a successful one"
    seconds = seconds_of(shown["TimeoutStartUSec"])
    if is_strict and 0 < seconds < START_SECONDS:
        yield f"TimeoutStartSec={seconds:g} ends the gate, which may take 20 s; give it {START_SECONDS} or more"
    for key, (form, follows) in _NAMELESS.items():
        if re.search(form, shown[key]):
            yield f"{key}=INVOCATION_ID {follows}"
    if RUN_DIR.name in shown["RuntimeDirectory"].split() and shown["RuntimeDirectoryPreserve"] != "yes":
        yield f"RuntimeDirectory={RUN_DIR.name} removes the files of the gate and of a trial of routes at each stop"


_SPAN = re.compile(r"([0-9.]+)(us|ms|s|min|h|d|w|month|y)?(?=[0-9. ]|$)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1, "": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_SECONDS |= {"month": 2629800, "y": 31557600}


def seconds_of(span: str) -> float:
    """Return the seconds of a time span in the format that systemd prints and reads (systemd.time(7))."""
    if span == "infinity":
        return float("inf")
    return sum(float(number) * _SECONDS[unit] for number, unit in _SPAN.findall(span))
