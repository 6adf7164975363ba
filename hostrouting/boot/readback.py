"""Pure: the scripts that run at boot -> the config that they were rendered from; the way back of ``render``."""

from __future__ import annotations

import re
from importlib import resources

from hostrouting.boot.render import render_check_route_overlap_script, render_static_routes_script
from hostrouting.config.routing import Config
from hostrouting.model.errors import ConfigError

__all__ = ["read_check_route_overlap_script", "read_static_routes_script", "values_of"]


def read_static_routes_script(text: str) -> Config | None:
    """What a script was rendered from.

    Args:
        text: of the script.

    Returns:
        The static routes and the wait; None if this version doesn't render such a text from anything: it has been
        edited, or another version has written it.
    """
    values = values_of("static-routes.sh", text)
    if values is None:
        return None
    try:
        rows = [row.split(" ") for row in values["ROUTES"].splitlines()]
        routes = [
            {
                "destination": destination,
                "gateway": None if gateway == "*" else gateway,
                "dev": None if dev == "*" else dev,
                "metric": int(metric),
            }
            for destination, gateway, dev, metric in rows
        ]
        config = Config(static_routes={"enabled": True, "routes": routes}, wait_seconds=int(values["WAIT_SECONDS"]))
    except (ValueError, ConfigError):
        return None
    again = render_static_routes_script(config.static_routes.routes, wait_seconds=config.wait_seconds)
    return config if again == text else None


def read_check_route_overlap_script(text: str) -> Config | None:
    """What a script was rendered from.

    Args:
        text: of the script.

    Returns:
        The expected CIDRs with how they are judged, and the wait; None as for ``read_static_routes_script``.
    """
    values = values_of("check-route-overlap.sh", text)
    if values is None:
        return None
    try:
        rows = [row.split(" ") for row in values["CONFIG"].splitlines()]
        named = {kind: [word for key, word in rows if key == kind] for kind in ("expect", "container", "allow")}
        overlap = {
            "expectedCidrs": named["expect"],
            "mode": values["MODE"],
            "containerDevs": named["container"],
            "allowedDevs": named["allow"],
            "settleSeconds": int(values["SETTLE_SECONDS"]),
            "coverage": values["COVERAGE"],
            "foreseen": [word for key, word in rows if key == "foreseen"],
        }
        config = Config(route_overlap=overlap, wait_seconds=int(values["WAIT_SECONDS"]))
    except (ValueError, ConfigError):
        return None
    read = config.route_overlap
    again = render_check_route_overlap_script(
        read.expected_cidrs,
        read.mode,
        wait_seconds=config.wait_seconds,
        container_devs=read.container_devs,
        allowed_devs=read.allowed_devs,
        settle_seconds=read.settle_seconds,
        coverage=read.coverage,
        foreseen=read.foreseen,
    )
    return config if again == text else None


def values_of(asset: str, text: str) -> dict[str, str] | None:
    """What stands in a text where the asset has its ``@NAMES@``; None if the rest differs."""
    source = resources.files("hostrouting.boot").joinpath("scripts", asset).read_text(encoding="utf-8")
    first, *others = re.split(r"@([A-Z_]+)@", source)
    if not text.startswith(first):
        return None
    values: dict[str, str] = {}
    start = len(first)
    for name, literal in zip(others[::2], others[1::2], strict=True):
        end = text.find(literal, start)
        if end < 0:
            return None
        values[name] = text[start:end]
        start = end + len(literal)
    return values if start == len(text) else None
