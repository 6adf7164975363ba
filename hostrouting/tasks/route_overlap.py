"""CheckRouteOverlap: install the part, ask the kernel, leave a marker, and raise where the mode is STRICT."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

import attrs

from hostrouting.boot.alone import alone
from hostrouting.boot.files import locked, remove
from hostrouting.boot.host import Host
from hostrouting.boot.installation import install_part, remove_parts, start_oneshot
from hostrouting.boot.manifest import CHECK
from hostrouting.boot.parts import check_part
from hostrouting.config.overlap import OverlapMode
from hostrouting.overlap.check import check_overlap, unjudged
from hostrouting.overlap.findings import OverlapReport, RouteOverlapError, Verdict
from hostrouting.overlap.markers import write_markers
from hostrouting.overlap.wording import error_text
from phases import CancelScope, all_or_nothing

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.config.routing import Config

__all__ = ["CheckRouteOverlap", "is_held_back", "remove_check"]


@attrs.frozen
class CheckRouteOverlap:
    """Prove that every expected CIDR leaves by the default route's interface, and leave a marker that says so.

    Args:
        config: the expected CIDRs, and what a failure means.
        host: where; None: this host.
        now: the time of day, in seconds since the epoch; for the report.
    """

    name = "check-route-overlap"

    config: Config
    host: Host | None = attrs.field(default=None, kw_only=True)
    now: Callable[[], float] = attrs.field(default=time.time, kw_only=True, repr=False)

    def do(self, scope: CancelScope) -> OverlapReport:
        """Do it.

        Returns:
            The report; in WARN mode also where something fails.

        Raises:
            RouteOverlapError: in STRICT mode, if something fails or nothing could be judged. The markers are written
                first, and nothing is undone.
            FileError: a marker can't be written.
        """
        host = self.host or Host()
        has_cidrs = bool(self.config.route_overlap.expected_cidrs)
        with alone(host, scope, is_wanting=has_cidrs):
            if not has_cidrs:
                remove_check(host, scope)
                return unjudged(self.config, Verdict.OK, now=self.now)
            return self._check(host, scope)

    def _check(self, host: Host, scope: CancelScope) -> OverlapReport:
        with all_or_nothing(scope) as undo:
            install_part(host, self.config.consumer, check_part(self.config, host.layout), undo)
        if host.is_image:
            reason = "an image has no kernel to ask; it is checked at its first boot"
            return unjudged(self.config, Verdict.UNKNOWN, reason, now=self.now)
        result = check_overlap(self.config, host.routes, scope, now=self.now)
        write_markers(host.layout, result)
        start_oneshot(host, CHECK)
        if is_held_back(result.mode, result.verdict):
            remedy = None if result.verdict is Verdict.UNKNOWN else result.remedy
            raise RouteOverlapError(error_text(result), findings=result.findings, reason=result.reason, remedy=remedy)
        return result


def is_held_back(mode: OverlapMode, verdict: Verdict) -> bool:
    """Whether a node must not start on this verdict."""
    return mode is OverlapMode.STRICT and verdict is not Verdict.OK


def remove_check(host: Host, scope: CancelScope) -> None:
    """Take back what an earlier run installed, and the markers."""
    remove_parts(host, scope, CHECK)
    remove_markers(host, scope)


def remove_markers(host: Host, scope: CancelScope) -> None:
    """Take the markers back; of a check that isn't installed any more."""
    markers = (host.layout.marker_ok, host.layout.marker_detected, host.layout.report)
    if any(path.exists() for path in markers):
        # The watcher looks under the lock whether they are still asked for.
        with nullcontext() if host.is_image else locked(host.layout.lock, scope):
            for path in markers:
                remove(path)
