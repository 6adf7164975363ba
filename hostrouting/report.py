"""Report types for tasks and functions, and the types they contain.

All these types are frozen and have ``to_json()``.

``Configure`` returns a ``ConfigureReport``, which consists of a ``RoutesReport``, a ``WatchReport``
and an ``OverlapReport``. All these reports have ``changes``. A task that is cancelled after its
first change raises ``StoppedRun``, and a task whose deadline passes after its first change
``OverdueRun``. Both errors list the changes that weren't undone. ``ChangesObserver`` collects the
changes of a tree of tasks.

Of the functions, ``check`` returns an ``OverlapReport``, ``plan`` a ``Plan``, ``explain`` an
``Explanation``, ``diff`` a ``DiffReport``, ``judge`` a ``FleetReport``, and ``examine`` a
``DoctorReport`` covering its checks (``CHECKS`` by default).
"""

from hostrouting.boot.locks import OverdueRun, StoppedRun
from hostrouting.doctor.check_types import DoctorCheck, DoctorFinding, ExaminedHost, Severity
from hostrouting.doctor.examine import CHECKS, DoctorReport
from hostrouting.fleet.groups import FleetReport, GroupFailure, HostGroup, JudgedHost, SharedReason
from hostrouting.kernel.host_changes import HostChange, HostChangeKind
from hostrouting.model.changes import Change, Changes, Replacement
from hostrouting.overlap.difference import ChangedResult, Difference, DiffReport, LookupResult
from hostrouting.overlap.explanation import ExplainedLookup, Explanation, Step
from hostrouting.overlap.findings import (
    FamilyVerdict,
    Finding,
    FindingKind,
    Note,
    NoteKind,
    OverlapReport,
    UnknownReason,
    Verdict,
)
from hostrouting.overlap.proposals import Fix, Obstacle, Unfixable
from hostrouting.routes.plan import RoutePlan, RoutesReport
from hostrouting.routes.policy import LeftOut, PolicyPlan, PolicyRouting
from hostrouting.tasks.observer import ChangesObserver, changes_of
from hostrouting.tasks.preview import NextStart, Plan
from hostrouting.tasks.reports import ConfigureReport, WatchReport

# fmt: off
__all__ = [
    "CHECKS", "Change", "ChangedResult", "Changes", "ChangesObserver", "ConfigureReport",
    "DiffReport", "Difference", "DoctorCheck", "DoctorFinding", "DoctorReport", "ExaminedHost",
    "ExplainedLookup", "Explanation", "FamilyVerdict", "Finding", "FindingKind", "Fix",
    "FleetReport", "GroupFailure", "HostChange", "HostChangeKind", "HostGroup", "JudgedHost",
    "LeftOut", "LookupResult", "NextStart", "Note", "NoteKind", "Obstacle", "OverdueRun",
    "OverlapReport", "Plan", "PolicyPlan", "PolicyRouting", "Replacement", "RoutePlan",
    "RoutesReport", "Severity", "SharedReason", "Step", "StoppedRun", "Unfixable", "UnknownReason",
    "Verdict", "WatchReport", "changes_of",
]
# fmt: on
