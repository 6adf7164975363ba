"""Render scripts from separate arguments instead of a whole config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hostrouting import Config, RouteOverlap
from hostrouting.boot.render import render_check, render_static_routes


def render_static_routes_script(routes: Sequence[Any], *, wait_seconds: int = 30) -> str:
    return render_static_routes(Config(static_routes={"enabled": True, "routes": routes}, wait_seconds=wait_seconds))


def render_check_route_overlap_script(
    expected_cidrs: Sequence[Any], mode: str = "WARN", *, wait_seconds: int = 30, **more: Any
) -> str:
    """Render the check script. Other keyword arguments are fields of `RouteOverlap`."""
    return render_check(Config(route_overlap=RouteOverlap(expected_cidrs, mode, **more), wait_seconds=wait_seconds))
