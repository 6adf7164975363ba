"""Is there a consumer, may the gate take its time, and does the consumer come up by itself after a mend?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostrouting.boot import files
from hostrouting.boot.examination import Fault, Severity
from hostrouting.boot.installation import is_there
from hostrouting.boot.unit_files import UNIT_PATH, drop_ins, unit_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hostrouting.boot.examination import ExaminedHost

__all__ = ["exists", "restarts", "ties"]

# As long as the gate holds before it fails, and the status by which it does.
_HOLD_SECONDS = 3
_FAILS_WITH = "255"

# By these a failed start is tried again, systemd.service(5).
_RESTARTING = ("on-failure", "always")


def exists(examined: ExaminedHost) -> Iterator[Fault]:
    """The unit that is held back is there and can be started."""
    consumer = examined.consumer
    if not is_there(examined.host, consumer):
        message = "there is no such unit: whatever runs on this node isn't held back"
        remedy = f"name the unit that runs it as consumer in CONFIG, then: {examined.command('apply')}"
        yield Fault("no-consumer", consumer, message, remedy)
    for name, shown in examined.units_of_consumer.items():
        if shown["LoadState"] == "masked":
            message = "it is masked: it doesn't start, whatever the gate says"
            yield Fault("masked", name, message, f"systemctl unmask {name}", Severity.RISK)


# --- by itself -----------------------------------------------------------------------------------------------------


def restarts(examined: ExaminedHost) -> Iterator[Fault]:
    """After a mend the consumer comes up by itself."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, shown in examined.instances.items():
        if why := _why_it_stays_down(shown):
            found.setdefault(why, []).append(name)
    for (because, setting), instances in found.items():
        yield Fault(
            "no-restart",
            examined.called(*instances),
            f"held back once, it stays down after the mend until somebody starts it: {because}",
            f"/etc/systemd/system/{examined.consumer}.d/restart.conf: {setting}; then: systemctl daemon-reload",
            Severity.RISK,
        )


def _why_it_stays_down(shown: Mapping[str, str]) -> tuple[str, str] | None:
    """The setting that keeps a unit from being started again, and what to set instead."""
    if shown["Restart"] not in _RESTARTING:
        is_set = shown["Restart"] not in ("", "no")
        return (f"Restart={shown['Restart']}" if is_set else "it has no Restart="), "[Service] Restart=on-failure"
    if _FAILS_WITH in shown["RestartPreventExitStatus"].split():
        because = f"RestartPreventExitStatus= holds {_FAILS_WITH}, with which the gate fails"
        return because, f"[Service] RestartPreventExitStatus= without {_FAILS_WITH}"
    interval, burst = seconds_of(shown["StartLimitIntervalUSec"]), int(shown["StartLimitBurst"] or 0)
    if interval and burst and burst * (_HOLD_SECONDS + seconds_of(shown["RestartUSec"])) <= interval:
        because = f"after {burst} starts in {shown['StartLimitIntervalUSec']} systemd gives up (StartLimitBurst=)"
        return because, "[Unit] StartLimitIntervalSec=0"
    return None


_SPAN = re.compile(r"([0-9.]+)(us|ms|s|min|h|d|w|month|y)?(?=[0-9. ]|$)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1, "": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_SECONDS |= {"month": 2629800, "y": 31557600}


def seconds_of(span: str) -> float:
    """A time span as systemd prints or reads it, systemd.time(7)."""
    if span == "infinity":
        return float("inf")
    return sum(float(number) * _SECONDS[unit] for number, unit in _SPAN.findall(span))


# --- what the oneshots do to it ------------------------------------------------------------------------------------

_REQUIRING = ("Requires", "Requisite", "BindsTo")
_TIED = (*_REQUIRING, "PartOf")


def ties(examined: ExaminedHost) -> Iterator[Fault]:
    """Nothing that is done to the oneshots stops the consumer, or keeps it from starting."""
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, shown in examined.instances.items():
        for unit in (f"{part}.service" for part in examined.gated):
            if keys := tuple(key for key in _TIED if unit in shown[key].split()):
                found.setdefault((unit, keys), []).append(name)
    for (unit, keys), instances in found.items():
        costs = [f"whoever stops or restarts {unit} stops this unit too"]
        if set(keys) & {*_REQUIRING}:
            costs.append("a start that fails for it isn't tried again by Restart=")
            costs.append("after hostrouting remove a start is refused")
        where = dict.fromkeys(place for name in instances for place in _where(examined, name, unit, keys))
        yield Fault(
            "tied",
            examined.called(*instances),
            f"{' and '.join(f'{key}={unit}' for key in keys)}: {', '.join(costs)}",
            f"take it out of {' and '.join(where) or f'what systemctl cat {instances[0]} shows'}; the gate and its "
            "Wants= do what it is for; then: systemctl daemon-reload",
            Severity.RISK,
        )


def _where(examined: ExaminedHost, name: str, unit: str, keys: Iterable[str]) -> list[str]:
    """The drop-ins and links by which a unit is tied to another one."""
    layout = examined.layout
    pattern = re.compile(rf"^\s*({'|'.join(keys)})\s*=.*(?<!\S)?{re.escape(unit)}", re.MULTILINE)
    found = [path for path in drop_ins(layout, name).values() if pattern.search(files.read_text(path) or "")]
    links = [layout.of(f"{folder}/{each}.requires/{unit}") for folder in UNIT_PATH for each in unit_names(name)]
    return [examined.name(path) for path in (*found, *links) if path in found or path.is_symlink() or path.exists()]
