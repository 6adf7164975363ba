"""Converters for the arguments of all tasks: the config and the host.

A converter rejects a value of another type. Its error says how to make a right one.
"""

from __future__ import annotations

import attrs

from hostrouting.boot.host import Host
from hostrouting.config.routing import Config
from hostrouting.model.text import shown
from hostrouting.model.values import frozen
from phases import CancelScope


def to_config(value: Config) -> Config:
    """Validate the type of a task's config. Used as an attrs converter.

    Raises:
        TypeError: the value isn't a config.
    """
    if not isinstance(value, Config):
        raise TypeError(
            f"a task takes a Config, not {shown(value)}; make one with Config.load(path) "
            "from a file, or with Config.from_mapping(mapping) from a document"
        )
    return value


def to_host(value: Host | None) -> Host:
    """Return the host for a task or function; by default, this host. Used as an attrs converter.

    Raises:
        TypeError: the value isn't a host.
        ConfigError: the host is an image that has become unsuitable since ``Host.image``.
    """
    if not isinstance(value, Host | None):
        raise TypeError(
            "a task takes host=Host(routes=…, units=…, layout=…) or Host.image(root), "
            f"not {shown(value)}; leave it out for this host"
        )
    host = value or Host()
    host.refuse_unsuitable_image()
    return host


def to_scope(value: CancelScope | None) -> CancelScope:
    """Return the scope for a task; by default, a new one.

    Raises:
        TypeError: the value isn't a scope.
    """
    if not isinstance(value, CancelScope | None):
        raise TypeError(f"expected scope=CancelScope(…), not {shown(value)}")
    return value or CancelScope()


@frozen
class HostTask:
    """Base class for tasks that change a host; by default, this one.

    A subclass without further fields inherits the methods made by attrs.
    """

    host: Host = attrs.field(
        default=None,
        converter=to_host,
        kw_only=True,
        repr=False,
    )


@frozen
class ConfigTask(HostTask):
    """Base class for tasks that apply a config to a host; by default, to this one."""

    config: Config = attrs.field(converter=to_config)
