"""Rehearse what the routes script does before a start, with a model of the host afterwards."""

from __future__ import annotations

import attrs

from hostrouting.boot.go_package import routes_to_adopt
from hostrouting.boot.host import Host
from hostrouting.config.routing import Config
from hostrouting.kernel.known_host import UnknownFactError
from hostrouting.kernel.port import read_default_routes
from hostrouting.model.errors import RouteError
from hostrouting.model.values import frozen
from hostrouting.overlap.planned_host import PlannedHost, planned_host
from hostrouting.routes.plan import RoutePlan, missing_hint, plan_now
from phases import CancelScope


@frozen
class Rehearsal:
    """The result of installing a config's routes and rules on a model of a host.

    If the installation would fail, so would the routes script, and the gate holds the start.

    Args:
        planned: the host as it would be afterwards. If the routes can't be planned, the plan is
            empty.
        missing: what the routes wait for, as a phrase, or None.
        error: why the routes can't be installed or wouldn't be in effect, or None. If something is
            missing, the error says so. An UnknownFactError means that this isn't known.
    """

    planned: PlannedHost
    missing: str | None = None
    error: RouteError | None = None

    @property
    def plan(self) -> RoutePlan:
        """Return the planned changes."""
        return self.planned.plan

    @property
    def reason(self) -> str:
        """Return the error and its hint as a clause, or an empty string."""
        return "" if self.error is None else "; ".join(self.error.clause.splitlines())

    def within_fix(self) -> Rehearsal:
        """Return the rehearsal for ``hostrouting fix``, whose error doesn't advise to run that."""
        error = None if self.error is None else self.error.within_fix()
        return attrs.evolve(self, error=error)


def rehearse(config: Config, host: Host, scope: CancelScope) -> Rehearsal:
    """Install a config's routes and rules on a model of a host.

    Args:
        config: the config; without routes and rules, all of ours are removed.
        host: the host as it is.
        scope: cancels the reads.

    Raises:
        UnknownFactError: the plan depends on a fact that a snapshot doesn't have.
        RouteError: the kernel can't be queried.
    """
    config = host.with_verified(config)
    backends = host.planned_backends(config)
    adopted = routes_to_adopt(host, replaces_script=config.static_routes.is_wanted)
    try:
        plan, missing = plan_now(config, *backends, adopted=adopted)
    except UnknownFactError:
        raise
    except RouteError as error:
        # Reading raises the error if the kernel can't be queried. If it can, the routes are the
        # problem.
        for backend in backends:
            backend.facts()
            read_default_routes(backend)
        return Rehearsal(PlannedHost(host, RoutePlan()), error=error)
    if missing is not None:
        hint = missing_hint(missing, config, backends)
        why = RouteError(f"the static routes can't be installed without {missing}", hint=hint)
        return Rehearsal(PlannedHost(host, plan), missing, why)
    planned = planned_host(config, host, plan, scope)
    scope.check()
    try:
        planned.rehearse()
    except RouteError as error:
        return Rehearsal(planned, error=error)
    return Rehearsal(planned)


def rehearse_installed(config: Config, host: Host, scope: CancelScope) -> Rehearsal:
    """Rehearse what the next start does first with an installed config.

    See ``rehearse``. Without routes and rules in the config, no script installs or removes any.
    """
    if config.static_routes.is_wanted:
        return rehearse(config, host, scope)
    return Rehearsal(PlannedHost(host, RoutePlan()))
