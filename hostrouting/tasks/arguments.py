"""Convert the arguments that tasks have in common, a config and a host, and refuse other values with a hint."""

from __future__ import annotations

import attrs

from hostrouting.boot.host import Host
from hostrouting.config.routing import Config
from hostrouting.model.text import shown


def to_config(value: Config) -> Config:
    """Return a task's config after checking its type; used as a converter of attrs.

    Raises:
        TypeError: the value isn't a config.
    """
    if not isinstance(value, Config):
        raise TypeError(
            f"a task takes a Config, not {shown(value)}; make one with Config.load(path) from a file, or with "
            "Config.from_mapping(mapping) from a document"
        )
    return value


def to_host(value: Host | None) -> Host:
    """Return the host that a task works on, which is this host if the value is None; used as a converter of attrs.

    Raises:
        TypeError: the value isn't a host.
    """
    if not isinstance(value, Host | None):
        raise TypeError(
            f"a task takes host=Host(routes=…, units=…, layout=…) or Host.image(root), not {shown(value)}; "
            "leave it out for this host"
        )
    return value or Host()


@attrs.frozen
class ConfigTask:
    """The fields of every task that takes a config.

    Args:
        config: the wanted config.
        host: the host to work on; by default this host.
    """

    config: Config = attrs.field(converter=to_config)
    host: Host = attrs.field(default=None, converter=to_host, kw_only=True, repr=False)
