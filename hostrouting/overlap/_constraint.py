"""Derive the constraints on a fix from a single lookup result."""

from __future__ import annotations

import attrs

from hostrouting.model.prefixes import ends, numbers
from hostrouting.model.routes import Route, Route6, Table
from hostrouting.overlap._cover import Segment
from hostrouting.overlap._coverage import Interval
from hostrouting.overlap.proposals import Obstacle


@attrs.frozen
class Constraint:
    """A constraint on the routes that may cover addresses with a given lookup result.

    Args:
        above: prefix length that a route must exceed to fix the failure (-1 if any route will do), or None if there is
            no failure or no route can fix it.
        obstacle: the reason why no route can fix the failure, or None if there is no failure or a route can fix it.
        most: maximum prefix length of a route that may cover the addresses, or -1 if none may.
        holder: the entry in table main that covers the addresses. It overrides ``most``: routes with a shorter prefix
            may cover the addresses.
        dev: the interface to which a route must lead to fix the failure, or None for the uplinks.
    """

    above: int | None = None
    obstacle: Obstacle | None = None
    most: int = -1
    holder: Route | None = None
    dev: str | None = None

    def segment(self, interval: Interval, bits: int) -> Segment:
        """Return the constraint for one interval."""
        most = self.most if self.above is None else bits
        if self.above is None and self.holder is not None:
            # An interval may span several entries, because intervals aren't split at every entry of a large table.
            destination = self.holder.destination
            first, last = ends(numbers(destination), bits)
            most = destination.prefixlen - 1 if first <= interval.first and interval.last <= last else -1
        return Segment(interval.first, interval.last, self.above, most)


def length_to_exceed(found: Route) -> int:
    """Return the prefix length that a new entry in table main must exceed to take precedence over an existing one.

    Our entries have the lowest metric in common use, so they take precedence over an entry with the same prefix length
    and a higher metric. Connected routes are an exception, because the kernel refuses a second one.
    """
    is_outdone = found.table == Table.MAIN and found.metric > found.family.usual_metric and not found.is_connected
    is_outdone = is_outdone and not (isinstance(found, Route6) and found.source_prefix)  # these precede plain entries
    return found.destination.prefixlen - is_outdone
