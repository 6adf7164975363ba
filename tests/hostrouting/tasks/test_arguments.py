"""A task refuses an argument of the wrong type when it is created, with a hint about the correct one."""

from __future__ import annotations

from typing import Any

import pytest

from hostrouting import (
    CheckRouteOverlap,
    Config,
    Configure,
    ConfigureStaticRoutes,
    ConfigureWatch,
    Host,
    RemoveHostRouting,
)
from hostrouting.tasks.install_routes import InstallRoutes

TASKS = (Configure, ConfigureStaticRoutes, ConfigureWatch, CheckRouteOverlap, InstallRoutes)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("config", [{"hostRouting": {}}, "/etc/aks-flex-node/config.json", None])
def test_a_wrong_config_is_refused_with_a_hint(task: Any, config: Any) -> None:
    with pytest.raises(TypeError, match=r"takes a Config, not .*Config\.load\(path\).*Config\.from_mapping\(mapping\)"):
        task(config)


@pytest.mark.parametrize("host", ["/mnt/image", object(), Host])
def test_a_wrong_host_is_refused_with_a_hint(host: Any) -> None:
    for task in TASKS:
        with pytest.raises(TypeError, match=r"takes host=Host\(.*Host\.image\(root\), not .*leave it out"):
            task(Config(), host=host)
    with pytest.raises(TypeError, match=r"takes host="):
        RemoveHostRouting(host=host)
