"""Say how to make last what ``fix --format ip`` has added on a host."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, collapse_addresses
from shlex import quote

import attrs

from hostrouting.boot.files import exists
from hostrouting.boot.host import Host
from hostrouting.boot.manifest import Manifest
from hostrouting.boot.parts import differing_parts
from hostrouting.config.routing import Config
from hostrouting.model.errors import HostRoutingError, RouteError
from hostrouting.model.family import IpNetwork
from hostrouting.model.links import is_like
from hostrouting.model.parsing import is_inside
from hostrouting.model.routes import Table
from hostrouting.model.values import frozen
from hostrouting.overlap.findings import OverlapReport
from hostrouting.overlap.planned_host import without_printed
from hostrouting.overlap.printed_on_host import listed_on, printed_on
from hostrouting.overlap.rehearsal import rehearse
from hostrouting.routes.printed import (
    BESIDE,
    Printed,
    about_printed,
    how_to_delete_all,
    is_listed,
)
from phases import CancelScope

# The argument for a config that isn't in a file that is known.
_NAMELESS = "CONFIG"
# The file to write if the default CONFIG is another one's.
_COPY = "fixed.json"


@frozen
class LastingFile:
    """The file into which a fix is written so that it lasts.

    Args:
        name: the argument that names it.
        config: what the file has, or gets from ``source``.
        source: the file with the installed config, if that is to be copied.
        is_known: whether ``name`` is a file's, and not just a placeholder.
    """

    name: str
    config: Config
    source: str = ""
    is_known: bool = True

    @property
    def apply(self) -> str:
        """Return the command that installs the file's config."""
        return f"hostrouting apply {self.name}"

    @property
    def apply_listed(self) -> str:
        """Return the command that installs what is listed already."""
        return f"hostrouting apply {self.source or self.name}"

    def fix(self, config: Config, more: Iterable[str] = ()) -> str:
        """Return the command that writes a config's fix, with the options that the file lacks.

        Args:
            config: the config that is judged.
            more: further options.
        """
        known = {each.cidr for each in self.config.route_overlap.expected_cidrs}
        asked = [each.cidr for each in config.route_overlap.expected_cidrs]
        options = [f"--cidr {cidr}" for cidr in asked if cidr not in known]
        if config.uplinks is not None and config.uplinks != self.config.uplinks:
            options += [f"--uplink {quote(name)}" for name in config.uplinks]
        fix = " ".join(("hostrouting fix --in-place", *options, *more, self.name))
        if not self.source:
            return fix
        return f"hostrouting config set {self.name} --from {self.source} && {fix}"


def lasting_file(host: Host, given: str, config: Config | None) -> LastingFile:
    """Return the file that was judged, or, of what is installed, the file to write a fix to.

    Args:
        host: the host with the installed and the default config.
        given: the argument for CONFIG, as an operator would type it; empty if none was given.
        config: the config in the given file; None if it isn't in a file.
    """
    if config is None:
        return LastingFile(_NAMELESS, Config(), is_known=False)
    if host.snapshot is not None:
        return LastingFile(given or _NAMELESS, config, is_known=bool(given))
    layout = host.layout
    if given and given != quote(str(layout.manifest)):
        return LastingFile(given, config)
    default = quote(str(layout.config))
    try:
        manifest = Manifest.load(layout)
    except HostRoutingError:  # the doctor reports this error
        return LastingFile(default, config)
    if not manifest.config.is_gated:
        return LastingFile(default, config)
    if (same := _default_config(host, manifest)) is not None:
        return LastingFile(default, same)
    name = _COPY if exists(layout.config) else default
    return LastingFile(name, manifest.config, quote(str(layout.manifest)))


def file_of_config(host: Host, config: Config) -> LastingFile:
    """Return the file to write a fix to, for a config of a file whose name isn't known."""
    if host.snapshot is None and _is_installed(host, config):
        file = lasting_file(host, "", config)
        if file.fix(config) == file.fix(file.config):
            return file
    return LastingFile(_NAMELESS, config, is_known=False)


def _is_installed(host: Host, config: Config) -> bool:
    """Return whether a config is installed, perhaps with other verified uplinks."""
    try:
        manifest = Manifest.load(host.layout)
    except HostRoutingError:  # the doctor reports this error
        return False
    return manifest.config.is_gated and not differing_parts(manifest, config, host.layout)


def _default_config(host: Host, manifest: Manifest) -> Config | None:
    """Return the default CONFIG if it differs in routes, rules and kept interfaces at most."""
    try:
        config = Config.load(host.layout.config)
        bare = attrs.evolve(config, static_routes=manifest.config.static_routes)
        return None if differing_parts(manifest, bare, host.layout) else config
    except HostRoutingError:
        return None


def advice_on_printed(
    config: Config,
    host: Host,
    file: LastingFile,
    report: OverlapReport,
    scope: CancelScope,
) -> tuple[str, str] | None:
    """Return why what was printed can't stay, and how to make it last; None if there is nothing.

    What was printed is deleted only after a command that fails if the rest would, or if a model of
    the host says that the rest works.

    Args:
        config: the config that is judged, with the options of the command.
        host: the host as it is.
        file: the file of the config; see ``lasting_file``.
        report: the check's report.
        scope: cancels the reads.

    Raises:
        RouteError: the kernel can't be queried.
    """
    printed = printed_on(host)
    if not printed:
        return None
    message = about_printed(printed, listed_on(host, config))
    deleting = how_to_delete_all(printed)
    more = [f"--cidr {cidr}" for cidr in _unexpected(printed, config)]
    more += [f"--uplink {quote(dev)}" for dev in _unnamed_uplinks(printed, config, report)]
    fix = file.fix(config, more)
    is_asked_for = file.is_known and fix == file.fix(file.config)
    if is_asked_for and _is_enough(printed, file.config, host, scope):
        hint = f"{deleting} && {file.apply_listed}"
        return message, hint if message == BESIDE else f"to make it last: {hint}"
    return message, f"to make it last: {fix} && {deleting} && {file.apply}"


def as_sentence(advice: tuple[str, str] | None) -> str:
    """Return the message and the hint of ``advice_on_printed``; empty for None."""
    if advice is None:
        return ""
    message, hint = advice
    is_short = message == BESIDE and not hint.startswith("to ")
    return f"{message}{':' if is_short else ';'} {hint}"


def _unexpected(printed: Iterable[Printed], config: Config) -> list[IpNetwork]:
    """Return the networks for which routes and rules were printed, and that aren't expected."""
    expected = _summarized(each.cidr for each in config.route_overlap.expected_cidrs)
    to: list[IpNetwork] = []
    for each in printed:
        to += [route.destination for route in each.routes if route.table == Table.MAIN]
        to += [rule.destination for rule in each.rules if rule.destination is not None]
    return _summarized(net for net in to if not any(is_inside(net, each) for each in expected))


def _summarized(networks: Iterable[IpNetwork]) -> list[IpNetwork]:
    """Return the fewest networks with the same addresses."""
    given = [*networks]
    ipv4 = (network for network in given if isinstance(network, IPv4Network))
    ipv6 = (network for network in given if isinstance(network, IPv6Network))
    return [*collapse_addresses(ipv4), *collapse_addresses(ipv6)]


def _devs_in_main(printed: Iterable[Printed]) -> list[str]:
    """Return the interfaces of the printed routes in table main."""
    routes = (route for each in printed for route in each.routes if route.table == Table.MAIN)
    return [*dict.fromkeys(dev for route in routes for dev in route.devs)]


def _unnamed_uplinks(
    printed: Iterable[Printed], config: Config, report: OverlapReport
) -> list[str]:
    """Return the uplinks of the printed routes, if they aren't what the config takes for such."""
    if config.uplinks is not None:
        return []
    devs = _devs_in_main(printed)
    known = (*report.default_devs, *(dev for each in report.expected for dev in each.devs or ()))
    return [] if all(is_like(dev, known) for dev in devs) else devs


def _is_enough(
    printed: tuple[Printed, ...], config: Config, host: Host, scope: CancelScope
) -> bool:
    """Return whether a config alone does what was printed, on a model of the host without that."""
    if not is_listed(printed, config.static_routes):
        return False
    bare = without_printed(config, host, printed, scope)
    try:
        rehearsal = rehearse(config, bare, scope)
        if rehearsal.error is not None:
            return False
        return not rehearsal.planned.failure(bare.with_verified(config), scope)
    except RouteError:
        return False
