"""The reports of tasks and functions, and the values in them; each is frozen and has ``to_json()``.

Of the tasks: ``ConfigureReport``, made of a ``RoutesReport``, a ``WatchReport`` and an ``OverlapReport``; all have
``changes``. A run that was cancelled after it had changed something that stays raises ``StoppedRun``, and one whose
time was over ``OverdueRun``.

Of the functions: ``check`` returns an ``OverlapReport``, ``plan`` a ``Plan``, ``explain`` an ``Explanation``, ``judge``
a ``FleetReport``, and ``examine`` a ``DoctorReport`` of the checks that it has made, ``CHECKS`` if no others are given.
"""

from hostrouting.boot.locks import OverdueRun, StoppedRun
from hostrouting.doctor.examination import Examination, ExaminedHost, Fault, Severity
from hostrouting.doctor.examine import CHECKS, DoctorReport
from hostrouting.model.changes import Change, Changes
from hostrouting.overlap.explanation import Explanation, LookupWay, Step
from hostrouting.overlap.findings import (
    Finding,
    FindingKind,
    Note,
    NoteKind,
    Obstacle,
    OverlapReport,
    Remedy,
    UnknownReason,
    Unmendable,
    Verdict,
)
from hostrouting.overlap.fleet import FleetReport, GroupFailure, HostGroup
from hostrouting.routes.plan import Replacement, RoutePlan, RoutesReport
from hostrouting.tasks.preview import NextStart, Plan
from hostrouting.tasks.reports import ConfigureReport, WatchReport

# fmt: off
__all__ = [
    "CHECKS", "Change", "Changes", "ConfigureReport", "DoctorReport", "Examination", "ExaminedHost", "Explanation",
    "Fault", "Finding", "FindingKind", "FleetReport", "GroupFailure", "HostGroup", "LookupWay", "NextStart", "Note",
    "NoteKind", "Obstacle", "OverdueRun", "OverlapReport", "Plan", "Remedy", "Replacement", "RoutePlan",
    "RoutesReport", "Severity", "Step", "StoppedRun", "UnknownReason", "Unmendable", "Verdict", "WatchReport",
]
# fmt: on
