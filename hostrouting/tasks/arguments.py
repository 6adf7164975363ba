"""Convert what every task takes, a config and a host; refuse anything else, and say what to give instead."""

from __future__ import annotations

import attrs

from hostrouting.boot.host import Host
from hostrouting.config.routing import Config
from hostrouting.model.text import shown


def to_config(value: Config) -> Config:
    """Convert a task's config; for attrs.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, Config):
        raise TypeError(
            f"a task takes a Config, not {shown(value)}; make one by Config.load(path) of a file, or by "
            "Config.from_mapping(mapping) of a document"
        )
    return value


def to_host(value: Host | None) -> Host:
    """Convert the host that a task works on, this one if none is named; for attrs.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, Host | None):
        raise TypeError(
            f"a task takes host=Host(routes=…, units=…, layout=…) or Host.image(root), not {shown(value)}; "
            "leave it out for this host"
        )
    return value or Host()


@attrs.frozen
class ConfigTask:
    """The two fields of every task that takes a config.

    Args:
        config: what is wanted.
        host: where; None: this host.
    """

    config: Config = attrs.field(converter=to_config)
    host: Host = attrs.field(default=None, converter=to_host, kw_only=True, repr=False)
