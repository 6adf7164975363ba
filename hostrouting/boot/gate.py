"""Pure: the gate, its drop-ins and its list, and whether a unit's settings hold it.

Why this design: ``Before=`` in a plain unit orders nothing against a template. ``Requires=`` opens on systemd 252 if
the required unit is missing or masked, and restarts the machine whenever that unit is restarted. A
script that the consumer runs itself judges every start, blocks it, shows as a failed unit, is retried by ``Restart=``,
and nothing that happens to the oneshots stops a running machine.

The drop-ins are the same whatever is installed: if the command that systemd runs vanishes from a unit at a reload,
systemd goes straight to ``ExecStart=``. Only the list changes, which the script reads again before each step. There are
commands in two lists, because any command that vanishes takes the rest of its own list with it. No two lines are equal,
because systemd would confuse them and skip the lines between.

The ``-`` of the first line makes systemd ignore its failure: if an ``ExecCondition=`` fails, even only because its
working directory appears late, systemd skips the unit, without an error and without ``Restart=``. So that line refuses
a start by not ending, and the others by failing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping

from hostrouting.boot.layout import RUN_DIR, Layout
from hostrouting.boot.manifest import Manifest

# Whether installed or not. A plug-in's oneshots are in another drop-in, which holds nothing back.
_ONESHOTS = "static-routes.service check-route-overlap.service"
_SCRIPT = Layout().gate_script
_HOLD = ("ExecCondition", "-+", f"{_SCRIPT} hold")
_AGAIN = ("ExecStartPre", "+", f"{_SCRIPT} again")
_LAST = ("ExecStartPre", "+", f"{_SCRIPT} last")
# Not a script of ours: a truncated one would succeed, and leave no file.
_PASS = f"/{RUN_DIR}/passed/${{INVOCATION_ID}}"
_PASSED = ("ExecStartPre", "+", f"/usr/bin/test -f {_PASS} -o -e {Layout().gate_off}")
# An instance's own drop-in may empty the second list, which backs up the ignored failures of the first.
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

# The gate ends within 20 s; a consumer with a shorter time-out ends it first.
START_SECONDS = 25

# The properties that opening_settings needs.
SETTINGS = (
    *("SuccessExitStatus", "TimeoutStartUSec", "Environment", "UnsetEnvironment"),
    *("RuntimeDirectory", "RuntimeDirectoryPreserve"),
)

# The problem with a setting that contains this.
_NAMELESS = {
    "Environment": (r'(^|[ "])INVOCATION_ID=', "gives all starts one name: an earlier pass is mistaken for theirs"),
    "UnsetEnvironment": (r'(^|[ "])INVOCATION_ID\b', "removes the name of a pass: no start gets through"),
}

# The gate's possible exits: its own 255, test's 1, bash's, those of a script that can't be run, systemd's (EXIT_CHDIR
# to EXIT_NUMA_POLICY in its src/basic/exit-status.h), and the signals that kill it.
_ENDS = {"255", "1", "2", "126", "127", *map(str, range(200, 244)), "KILL", "TERM", "ABRT"}


# A truncated list lacks this.
_END = "end"


def list_text(manifest: Manifest, scripts: Mapping[str, bytes]) -> str:
    """Render the list of the scripts that the gate runs, and whether a failure holds the consumer back.

    Scripts that hold the consumer back come first: another one may use all the time there is. Each row has a checksum,
    so that another script makes another list, and then a running gate starts over.

    Args:
        manifest: the installation.
        scripts: the content of each part's script, by the part's name; missing scripts are left out.
    """
    rows = []
    for name, part in sorted(manifest.parts.items(), key=lambda each: not each[1].is_blocking):
        if part.is_gated:
            how = "required" if part.is_blocking else "forgiven"
            checksum = hashlib.sha256(scripts[name]).hexdigest()[:16] if name in scripts else "-"
            rows.append(f"{Layout().script(name)} {how} {checksum}")
    return "".join(f"{row}\n" for row in (*rows, _END))


def with_other_scripts(text: str, places: Mapping[str, str]) -> str:
    """Return a list that names other places for some of its scripts.

    Args:
        text: the list.
        places: the script to run instead, by the original path.
    """
    rows = [line.split(" ") for line in text.splitlines()]
    return "".join(f"{' '.join([places.get(script, script), *more])}\n" for script, *more in rows)


_COMMAND = re.compile(r"\{ path=\S* ; argv\[\]=(?P<argv>.*?) ; flags=(?P<flags>.*?) ;")


def missing_commands(shown: Mapping[str, str]) -> tuple[str, ...]:
    """Return the commands of the gate that a unit lacks.

    Args:
        shown: the properties ``ExecConditionEx`` and ``ExecStartPreEx`` as ``systemctl show`` prints them.

    Returns:
        The lines that are missing, or that have lost their privileges or their effect.
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
        is_strict: whether the check holds the unit back; if not, the gate works with a shorter time-out.

    Yields:
        Each setting as a clause.
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
    """Return the seconds of a time span as systemd prints or reads it, systemd.time(7)."""
    if span == "infinity":
        return float("inf")
    return sum(float(number) * _SECONDS[unit] for number, unit in _SPAN.findall(span))
