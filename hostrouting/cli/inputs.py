"""Load the config, CIDRs or host that a command's options name."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import attrs

from hostrouting.boot.host import Host
from hostrouting.cli.output import bad, complain
from hostrouting.config.documents import read_config
from hostrouting.config.routing import SECTION, Config, ExpectedCidr, InstalledUplinkRecord
from hostrouting.model.errors import ConfigError, FileError, HostRoutingError
from hostrouting.model.opening import translate_errors
from hostrouting.model.parsing import parse_any_cidr
from hostrouting.model.text import clean

if TYPE_CHECKING:
    from pathlib import Path

    from hostrouting.kernel.snapshot import Snapshot

T = TypeVar("T")

# The argument for a config that isn't in a file yet.
_NAMELESS = "CONFIG"


class UsageError(HostRoutingError):
    """The error for invalid command-line arguments."""


def asked_host(options: argparse.Namespace, host: Host) -> Host:
    """Return the image that --root names, the snapshot that --snapshot names, or the given host.

    The name of the snapshot's host is kept in the options (``host_asked_for``).
    """
    if options.snapshot is None:
        return options.image or host
    if options.image is not None:
        raise UsageError("--root and --snapshot are mutually exclusive")
    path, *others = options.snapshot
    if others:
        raise UsageError("--snapshot is given twice; give one snapshot at a time")
    recorded = Host.recorded(load_snapshot(path))
    options.recorded = recorded.name
    return recorded


def host_asked_for(options: argparse.Namespace) -> dict[str, str | None]:
    """Return the JSON's ``host`` for an image or a snapshot; empty for this host.

    If the snapshot can't be read, ``host`` is None.
    """
    if getattr(options, "image", None) is not None:
        return {"host": options.image.name}
    is_recorded = getattr(options, "snapshot", None) is not None
    return {"host": getattr(options, "recorded", None)} if is_recorded else {}


def load_snapshot(path: str) -> Snapshot:
    """Return the snapshot in a file."""
    from hostrouting.kernel.snapshot import STDIN, Snapshot

    try:
        return Snapshot.load(path)
    except ConfigError as error:
        name = "standard input" if path == STDIN else path
        if not any(where == name for where, _ in error.problems):
            complain(f"{bad('hostrouting:')} {clean(name)} isn't a snapshot:")
        raise


def config_and_snapshots(options: argparse.Namespace) -> tuple[str | None, list[str]]:
    """Return CONFIG, or None if it isn't given, and the files of the FILE and FOLDER arguments.

    The first of several arguments is CONFIG, except if it is a folder or a snapshot. A broken
    snapshot must not be mistaken for CONFIG. So with --cidr, a first argument without the key
    hostRouting counts as a snapshot. A file that is given twice is returned once.

    Raises:
        FileError: a folder can't be read.
        HostRoutingError: a folder has no snapshots, or none of the files and folders exists.
        UsageError: the only or the last argument is a CONFIG.
    """
    from hostrouting.kernel.snapshot import STDIN

    paths = [path for path in (options.config, *options.snapshots) if path is not None]
    is_first_config = _is_config if options.cidr else _may_be_config
    config = None
    if len(paths) > 1 and is_first_config(paths[0]):
        config = paths.pop(0)
    else:
        _refuse_misplaced_config(paths)
    if not any(path == STDIN or os.path.lexists(path) for path in paths):
        raise HostRoutingError(f"there is no file or folder {paths[0]}")
    return config, _files_of(paths, config)


def _files_of(paths: Iterable[str], config: str | None) -> list[str]:
    """Return files and the files in folders. A file that is given twice is returned once."""
    by_place: dict[tuple[str, str], str] = {}
    for path in paths:
        for file in _files_in(path, config) if _is_folder(path) else [path]:
            by_place.setdefault(_place(file), file)
    return [*by_place.values()]


def _refuse_misplaced_config(given: list[str]) -> None:
    """Raise a UsageError if the only or the last argument is a CONFIG."""
    last = given[-1]
    if not _is_config(last):
        return
    if len(given) == 1:
        raise UsageError(
            f"{last} is a CONFIG, and no snapshot is given",
            hint=f"name the snapshots, or their folder: hostrouting judge {last} FOLDER",
        )
    raise UsageError(
        f"{last} is a CONFIG, and not the first argument",
        hint=f"hostrouting judge {' '.join(map(quote, (last, *given[:-1])))}",
    )


def readable_elsewhere(path: str) -> Snapshot | str:
    """Return the path. If only this process can read it, as standard input, return the snapshot.

    Raises:
        ConfigError: the snapshot can't be read.
    """
    from hostrouting.kernel.snapshot import STDIN

    is_own = path.startswith(("/dev/stdin", "/dev/fd/", "/proc/self/"))
    return load_snapshot(path) if is_own or path == STDIN else path


def _place(path: str) -> tuple[str, str]:
    """Return a file's folder, without symlinks, and its name there."""
    folder, name = os.path.split(path)
    return os.path.realpath(folder), name


def _may_be_config(path: str) -> bool:
    """Return whether a file isn't a snapshot. A broken file counts as a config."""
    if _is_folder(path):
        return False
    try:
        document = read_config(path)
    except HostRoutingError:
        return True
    return not isinstance(document, dict) or SECTION in document or "links" not in document


def _is_config(path: str) -> bool:
    """Return whether a file is a CONFIG, and no snapshot."""
    if _is_folder(path):
        return False
    try:
        document: object = read_config(path)
    except HostRoutingError:
        return False
    return isinstance(document, dict) and SECTION in document


def _is_folder(path: str) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises an OSError without permission


def _files_in(folder: str, config: str | None) -> list[str]:
    """Return the JSON files in a folder by name, without hidden ones and CONFIG.

    The number of other files is reported on stderr.
    """
    with translate_errors(f"read the folder {folder}"), os.scandir(folder) as entries:
        shown = [each for each in entries if not each.name.startswith(".")]
    used = None if config is None else os.path.realpath(config)
    found = sorted(each.path for each in shown if each.name.endswith(".json"))
    files = [path for path in found if os.path.realpath(path) != used]
    if not files:
        raise HostRoutingError(f"there is no snapshot (*.json) in the folder {folder}")
    _report_ignored(len(shown) - len(found), folder)
    return files


def _report_ignored(count: int, folder: str) -> None:
    """Print a line on the files in a folder that aren't read; none if all are."""
    if count:
        said = "other file is" if count == 1 else "other files are"
        ignored = f"{count:,} {said} ignored in {folder}: only *.json is read"
        complain(clean(f"hostrouting: {ignored}"))


def read(options: argparse.Namespace, host: Host) -> tuple[dict[str, Any], Config]:
    """Return CONFIG's raw document and the parsed config."""
    return read_section(options, host, SECTION, Config.from_mapping)


def config_path(options: argparse.Namespace, host: Host) -> Path | str:
    """Return the path of CONFIG."""
    return host.layout.config if options.config is None else options.config


def read_section(
    options: argparse.Namespace,
    host: Host,
    section: str | None,
    parse: Callable[[dict[str, Any]], T],
) -> tuple[dict[str, Any], T]:
    """Return CONFIG's raw document and the result of ``parse`` for it.

    A CONFIG without the section is reported on stderr. With None as ``section``, it isn't.
    """
    path = config_path(options, host)
    if path == "":
        raise UsageError("CONFIG is empty; is a shell variable unset?")
    try:
        document = read_config(path)
        config = parse(document)
    except ConfigError as error:
        _introduce(error, options, host)
        raise
    if section is not None and section not in document:
        complain(f"hostrouting: {clean(str(path))} has no key {section}: it enables nothing")
    return document, config


WRITE_FIRST = """\
write the file first, with the CIDRs to expect, such as:
{"hostRouting": {"routeOverlap": {"expectedCidrs": ["172.16.0.0/16"]}}}"""
"""The hint for a file that --in-place can't change, because there is none."""

_NAME_ONE = "this is the default CONFIG; name another, or the CIDRs to expect: --cidr 172.16.0.0/16"


def _introduce(error: ConfigError, options: argparse.Namespace, host: Host) -> None:
    """Print a line before CONFIG's problems. If CONFIG can't be read, add a hint to the error."""
    path = str(config_path(options, host))
    if not any(where == path for where, _ in error.problems):
        complain(f"{bad('hostrouting:')} {clean(path)} breaks the rules:")
    elif "cidr" in options and (hint := _hint_on_cidrs(options, host)):
        error.hint = hint
    elif not error.hint:
        error.hint = _hint_on_config(options, host)


def _hint_on_cidrs(options: argparse.Namespace, host: Host) -> str:
    """Return a hint on --cidr for a CONFIG that is a CIDR or doesn't exist; empty for any other."""
    if options.config is not None and _is_cidr(options.config):
        return f"to expect this CIDR: --cidr {options.config}"
    path = config_path(options, host)
    if getattr(options, "in_place", False) and not os.path.lexists(path):
        if options.config is not None or not _has_manifest(host):
            return WRITE_FIRST
        copy = f"{quote(str(path))} --from {quote(str(host.layout.manifest))}"
        return f"write there what is installed: hostrouting config set {copy}"
    return "" if has_config(options, host) else _NAME_ONE


def _hint_on_config(options: argparse.Namespace, host: Host) -> str:
    """Return a hint to name another CONFIG than the default one, or an empty string."""
    if options.config is None and _has_manifest(host):
        return f"to use the installed config, name it: {host.layout.manifest}"
    return "" if has_config(options, host) else "this is the default CONFIG; name another"


def _has_manifest(host: Host) -> bool:

    from hostrouting.boot.files import exists
    from hostrouting.boot.manifest import Manifest

    with suppress(FileError):  # a run says what to do about a broken one
        return exists(host.layout.manifest) and not Manifest.load(host.layout).is_being_removed
    return True


def _is_cidr(word: str) -> bool:
    """Return whether an argument looks like a CIDR and not a file name."""
    try:
        parse_any_cidr(word)
    except ValueError:
        return False
    return True


def has_config(options: argparse.Namespace, host: Host) -> bool:
    """Return whether CONFIG is given or the default config exists."""
    from hostrouting.boot.files import read_text

    return options.config is not None or read_text(host.layout.config) is not None


def load(options: argparse.Namespace, host: Host) -> Config:
    """Return the config in CONFIG."""
    return read(options, host)[1]


class Chosen(NamedTuple):
    """The config that a command looks at.

    Args:
        document: the document that contains the config; None if the config isn't in a file.
        config: the config, with the CIDRs of --cidr and the uplinks of --uplink.
        name: the argument for commands that install the config; empty for the default CONFIG.
        given: the argument CONFIG as it would be typed; empty if there is none.
    """

    document: dict[str, Any] | None
    config: Config
    name: str
    given: str = ""


def choose(
    options: argparse.Namespace,
    host: Host,
    *,
    is_needed: bool = True,
    verb: str = "used",
) -> Chosen:
    """Return the config for a command that changes nothing on the host.

    The config is the CONFIG that the user has named. With --cidr alone, no file is read. Otherwise,
    the config is the installed one or, if nothing is installed, the default CONFIG.

    Args:
        options: the command's options.
        host: the host with the installed and the default config.
        is_needed: whether a missing config is an error.
        verb: the verb for a line on stderr about the use of the installed config, or an empty
            string for no line.
    """
    return _with_options(_choose(options, host, is_needed=is_needed, verb=verb), options)


def choose_default(options: argparse.Namespace, host: Host) -> Chosen:
    """Return CONFIG, or the default CONFIG if the user has named none."""
    return _with_options(_read(options, host), options)


def _read(options: argparse.Namespace, host: Host) -> Chosen:
    document, config = read(options, host)
    given = "" if options.config is None else quote(options.config)
    return Chosen(document, config, given, given)


def _choose(options: argparse.Namespace, host: Host, *, is_needed: bool, verb: str) -> Chosen:
    if options.config is not None:
        return _read(options, host)
    if getattr(options, "cidr", ()):
        return Chosen(None, Config(record=InstalledUplinkRecord()), _NAMELESS)
    from hostrouting.boot.manifest import Manifest

    installed = Manifest.load(host.layout).config
    if installed.is_gated:
        return _choose_installed(installed, host, verb)
    if is_needed or has_config(options, host):
        return _read(options, host)
    return Chosen(None, Config(record=InstalledUplinkRecord()), "")


def _choose_installed(installed: Config, host: Host, verb: str) -> Chosen:
    """Return the installed config. Its document is the default CONFIG's, if there is one."""
    path = host.layout.config
    document: dict[str, Any] = {}
    ending = ""
    try:
        document = read_config(path)
        if Config.from_mapping(document) == installed:
            return Chosen(document, installed, "")
        if SECTION in document:
            copy = f"{quote(str(path))} --from {quote(str(host.layout.manifest))}"
            ending = (
                f", and not {path}, which differs; to look at that, name it; "
                "to change to it: hostrouting apply; "
                f"to record there what is installed: hostrouting config set {copy}"
            )
    except HostRoutingError as error:
        if os.path.lexists(path):
            ending = f", and not {path}, which can't be used: {error.clause}"
    if verb:
        complain(f"hostrouting: the installed config is {verb}{ending}")
    whole = document | installed.to_mapping()
    return Chosen(whole, installed, quote(str(host.layout.manifest)))


def _with_options(chosen: Chosen, options: argparse.Namespace) -> Chosen:
    """Return the config with the CIDRs of --cidr and the uplinks of --uplink."""
    config = chosen.config
    if given := tuple(map(ExpectedCidr, getattr(options, "cidr", ()))):
        expected = (*config.route_overlap.expected_cidrs, *given)
        overlap = attrs.evolve(config.route_overlap, expected_cidrs=expected)
        config = attrs.evolve(config, route_overlap=overlap)
    uplinks = tuple(getattr(options, "uplink", ()))
    if not uplinks or uplinks == config.uplinks:
        return chosen._replace(config=config)
    name = chosen.name
    if not getattr(options, "in_place", False):  # --in-place writes the key
        name = f'{_NAMELESS}, after setting "uplinks": {json.dumps(uplinks)} in it'
    return chosen._replace(config=attrs.evolve(config, uplinks=uplinks), name=name)
