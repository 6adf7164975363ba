"""The manifest: the record of an installation.

With the manifest, ``remove`` needs no config. Later runs, the doctor and the watcher use the
manifest, too. The manifest lists each part's files and flags, and the config values that the part
was rendered from. The config values are stored under the ``hostRouting`` key, so a manifest can
also be parsed as a config.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import attrs

from hostrouting.boot import files
from hostrouting.boot.layout import CHECK, GATE_NAMES, ROUTES, Layout
from hostrouting.config.routing import SECTION, Config, StaticRoutes, Watch
from hostrouting.model.errors import ConfigError, FileError, UnitError
from hostrouting.model.values import frozen

T = TypeVar("T")

# Keys in the hostRouting section that several parts depend on.
SHARED_KEYS = ("waitSeconds", "uplinks")

# The order in which parts are started and checked. Parts that aren't listed here come last.
_ORDER = {ROUTES: 0, CHECK: 1}

_PART = re.compile(r"[a-z][a-z0-9-]*")
_DROP_IN = re.compile(
    r"/etc/systemd/system/[A-Za-z0-9:_@-][A-Za-z0-9:_.@-]*\.service\.d/hostrouting-(.+)\.conf"
)
_PROTOCOL_NAMES = "/etc/iproute2/rt_protos.d/hostrouting.conf"
_FOLDER = re.compile(
    r"/etc(/aks-flex-node|/hostrouting|/iproute2(/rt_protos\.d)?|/systemd(/system(/[A-Za-z0-9:_.@-]+\.(d|wants))?)?)?"
)


@frozen
class InstalledPart:
    """An installed part as recorded in the manifest.

    Args:
        is_blocking: whether the part's failure blocks the consumer.
        is_gated: whether the gate runs the part's script.
        files: absolute paths on the running system, in write order.
        config: the config values that the part was rendered from, by section and key.
        settle_seconds: how long the part's script waits for addresses of kept interfaces. The
            check's values contain this time, too, but the check may not be installed.
    """

    is_blocking: bool = False
    is_gated: bool = False
    files: tuple[str, ...] = ()
    config: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    settle_seconds: int = 0

    @property
    def units(self) -> tuple[str, ...]:
        """Return the units that the files define or extend, except templates."""
        units = []
        for path in map(PurePosixPath, self.files):
            if not path.is_relative_to("/etc/systemd/system"):
                continue
            is_drop_in = path.suffix == ".conf"
            name = path.parent.name.removesuffix(".d") if is_drop_in else path.name
            if "@." not in name:
                units.append(name)
        return tuple(units)


def _in_order(parts: Mapping[str, InstalledPart]) -> dict[str, InstalledPart]:
    def position(name: str) -> tuple[int, str]:
        return _ORDER.get(name, len(_ORDER)), name

    return {name: parts[name] for name in sorted(parts, key=position)}


@frozen
class Manifest:
    """The record of an installation.

    Args:
        consumer: the unit whose starts the gate checks.
        parts: the installed parts by name, in the order in which they are started and checked.
        folders: folders created by the installation, as absolute paths on the running system.
        former: previous consumers that still have the gate's drop-ins.
    """

    consumer: str = ""
    parts: dict[str, InstalledPart] = attrs.field(factory=dict, converter=_in_order)
    folders: tuple[str, ...] = ()
    former: tuple[str, ...] = ()

    @classmethod
    def load(cls, layout: Layout) -> Manifest:
        """Load the manifest. If nothing is installed, return an empty one.

        Raises:
            FileError: the file can't be read or is invalid, or contains a path that hostrouting
                never installs.
        """
        text = files.read_text(layout.manifest)
        if text is None:
            return cls()
        try:
            return cls._of(json.loads(text))
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
            ConfigError,
        ) as error:
            raise FileError(
                f"can't read the manifest {layout.manifest}, which lists what to remove: {error!r}",
                hint="fix it, or remove it to forget what was installed",
            ) from error

    @classmethod
    def _of(cls, document: dict[str, Any]) -> Manifest:
        parts = {}
        for name, item in document["parts"].items():
            parts[_checked(_PART, name)] = _part(name, item, document)
        # Consumer names end up in paths to remove, so validate them again with the config's rules.
        names = [document["consumer"], *document["former"]]
        consumer, *former = [Config(consumer=name).consumer for name in names]
        folders = tuple(_checked(_FOLDER, name) for name in document["folders"])
        return cls(consumer, parts, folders, tuple(former))

    @classmethod
    def of_host(cls, layout: Layout) -> Manifest:
        """Load the manifest, or reconstruct it from our units and drop-ins if the file is missing.

        Raises:
            FileError: the file can't be read or is invalid, or contains a path that hostrouting
                never installs.
        """
        return cls.load(layout) if files.exists(layout.manifest) else _reconstruct(layout)

    @property
    def is_being_removed(self) -> bool:
        """Return whether a run was stopped while it removed everything, so that no config is left.

        A manifest that was reconstructed from files has no config, either.
        """
        return bool(self.parts) and not any(part.config for part in self.parts.values())

    @property
    def has_gate(self) -> bool:
        """Return whether the gate runs any scripts."""
        return any(part.is_gated for part in self.parts.values())

    @property
    def is_strict(self) -> bool:
        """Return whether a failed check blocks the consumer."""
        return CHECK in self.parts and self.parts[CHECK].is_blocking

    @property
    def sections(self) -> dict[str, dict[str, Any]]:
        """Return the config values of the installed parts, by section and key."""
        merged: dict[str, dict[str, Any]] = {}
        for part in self.parts.values():
            for section, keys in part.config.items():
                merged.setdefault(section, {}).update(keys)
        for part in self.parts.values():
            if part.settle_seconds:
                settling = {"settleSeconds": part.settle_seconds}
                merged.setdefault(SECTION, {}).setdefault("routeOverlap", settling)
        if self.consumer:
            merged.setdefault(SECTION, {})["consumer"] = self.consumer
        return merged

    @property
    def config(self) -> Config:
        """Return the installed parts' host routing config.

        Raises:
            FileError: same as ``read_as``.
        """
        return self.read_as(Config.from_mapping)

    def read_as(self, read: Callable[[Mapping[str, Any]], T]) -> T:
        """Parse the installed parts' config values with the given function.

        Raises:
            FileError: the function rejects the values, so the manifest must have been edited.
        """
        try:
            return read(self.sections)
        except ConfigError as error:
            raise FileError(
                f"can't tell what was installed, as the manifest was edited: {error}",
                hint="run apply again, with the wanted config",
            ) from error

    def to_text(self) -> str:
        """Return the text of the manifest's file."""
        document = {
            "schema": 2,
            "consumer": self.consumer,
            "parts": {name: _to_json(part) for name, part in self.parts.items()},
            "folders": self.folders,
            "former": self.former,
            **self.sections,
        }
        # Write one line per key, so that the file is about as short as the config: the watcher
        # limits the size of both.
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def gates(self, layout: Layout) -> list[Path]:
        """Return the gate's drop-ins for the consumer and for former consumers."""
        if not self.has_gate:
            return []
        consumers = filter(None, (self.consumer, *self.former))
        return [path for consumer in consumers for path in layout.gates(consumer)]

    def files(self, layout: Layout) -> list[Path]:
        """Return all installed files except for the manifest, in the order to remove them.

        Each part's first path is the symlink that enables its unit. The part's files follow, in
        the reverse order of writing.
        """
        of_parts: list[Path] = []
        for name, part in self.parts.items():
            of_parts.append(layout.enablement(name))
            of_parts += map(layout.of, reversed(part.files))
        if not self.has_gate:
            return of_parts
        return [layout.gate_list, *self.gates(layout), *of_parts, layout.gate_script]

    def folders_above(self, layout: Layout) -> set[Path]:
        """Return the parent folders of the installed files that are below the layout's root.

        The manifest's own folder is left out.
        """
        above: set[Path] = set()
        for path in self.files(layout):
            above.update(path.parents)
        above.discard(layout.manifest.parent)
        return {folder for folder in above if layout.root in folder.parents}

    def textfile(self, layout: Layout) -> Path | None:
        """Return the installed watcher's metrics file, or None."""
        try:
            name = self.read_as(_watch).textfile
        # The manifest was edited and isn't valid any more. The metrics file stays, but all other
        # files can be removed.
        except FileError:
            return None
        if name is None:
            return None
        if layout.is_this_host:
            return layout.of(name)
        # The folder belongs to another program, and a symlink in its path must not escape the
        # image.
        folder, _, last = name.rpartition("/")
        return layout.followed(folder) / last

    def with_parts(self, names: Collection[str], parts: dict[str, InstalledPart]) -> Manifest:
        """Return a copy of the manifest in which the given parts replace the named ones.

        All parts have the same values of ``SHARED_KEYS``: the parts that stay get the new values.
        """
        wanted = Manifest(parts=parts).sections
        others = {
            name: _with_shared_keys(part, wanted)
            for name, part in self.parts.items()
            if name not in names
        }
        return attrs.evolve(self, parts=others | parts)


def _watch(sections: Mapping[str, Any]) -> Watch:
    """Parse only the watcher's values, because parsing thousands of routes takes too long."""
    watch = sections.get(SECTION, {}).get("watch")
    return Config.from_mapping({SECTION: {"watch": watch}}).watch


def _with_shared_keys(
    part: InstalledPart,
    wanted: Mapping[str, Mapping[str, Any]],
) -> InstalledPart:
    old = part.config.get(SECTION, {})
    new = wanted.get(SECTION, {})
    if not old.keys() & SHARED_KEYS or not new.keys() & SHARED_KEYS:
        return part
    if old.get("uplinks") != new.get("uplinks"):
        # The scripts of the installed parts were rendered with the old uplinks.
        uplinks = ",".join(old.get("uplinks") or ()) or "none"
        raise UnitError(
            f"can't install a part with uplinks other than those of the installed parts, {uplinks}",
            hint="install all at once, with Configure or hostrouting apply",
        )
    shared = {key: new[key] for key in SHARED_KEYS if key in old and key in new}
    return attrs.evolve(part, config={**part.config, SECTION: {**old, **shared}})


# All our units and drop-ins start with this text.
HEADER = "# Written by hostrouting;"


def _reconstruct(layout: Layout) -> Manifest:
    """Reconstruct the manifest from our units and drop-ins on disk."""
    folders = files.matching(layout.units, "*.service.d")
    gated = [folder for folder in folders if any(_is_ours(folder / name) for name in GATE_NAMES)]
    units = filter(_is_ours, files.matching(layout.units, "*.service"))
    names = {path.stem for path in units}
    if gated:
        # The drop-ins make the consumer run the scripts of both parts, even if one of them has no
        # unit. So both count as installed.
        names |= {ROUTES, CHECK}
    parts = {name: _reconstruct_part(name, layout, folders) for name in names}
    consumer, *former = [folder.name.removesuffix(".d") for folder in gated] or [""]
    return Manifest(consumer, parts, former=tuple(former))


def _reconstruct_part(name: str, layout: Layout, drop_in_folders: Iterable[Path]) -> InstalledPart:
    paths: list[Path] = []
    for kind in ("sh", "nft"):  # a glob could match files of other programs with similar names
        paths += files.matching(layout.config.parent, f"{name}.{kind}")
    drop_ins = [folder / f"hostrouting-{name}.conf" for folder in drop_in_folders]
    paths += filter(_is_ours, [layout.unit(name), *drop_ins])
    if name == ROUTES and files.exists(layout.protocol_names):
        paths.append(layout.protocol_names)
    is_gated = name in (ROUTES, CHECK)
    return InstalledPart(
        is_blocking=is_gated,
        is_gated=is_gated,
        files=tuple(map(layout.relative, paths)),
    )


def _is_ours(path: Path) -> bool:
    try:
        return (files.read_text(path) or "").startswith(HEADER)
    except FileError:  # the path is a folder, a device or a dangling link
        return False


def _checked(pattern: re.Pattern[str], name: object) -> str:
    if not isinstance(name, str) or not pattern.fullmatch(name):
        raise ValueError(f"{name!r} is not a name that hostrouting installs")
    return name


def _checked_file(path: object, part: str) -> str:
    """Return the path of a part's file, which is named after the part.

    Uninstalling removes every file in the manifest. A manifest with a path that we never install is
    therefore rejected.
    """
    script = f"/etc/aks-flex-node/{part}"
    own = (f"{script}.sh", f"{script}.nft", f"/etc/systemd/system/{part}.service", _PROTOCOL_NAMES)
    drop_in = _DROP_IN.fullmatch(path) if isinstance(path, str) else None
    if path in own or (drop_in and drop_in[1] == part):
        return str(path)
    raise ValueError(f"{path!r} is not a file that hostrouting installs for {part}")


def _part(
    name: str, item: Mapping[str, Any], document: Mapping[str, Mapping[str, Any]]
) -> InstalledPart:
    config = {}
    for section, keys in item["config"].items():
        config[section] = {key: document[section][key] for key in keys}
    return InstalledPart(
        is_blocking=item["blocking"] is True,
        is_gated=item["gated"] is True,
        files=tuple(_checked_file(path, name) for path in item["files"]),
        config=config,
        settle_seconds=item.get("settleSeconds", 0),
    )


def _to_json(part: InstalledPart) -> dict[str, Any]:
    """Return a part as JSON: of its config values, only the keys."""
    document: dict[str, Any] = {
        "blocking": part.is_blocking,
        "gated": part.is_gated,
        "files": part.files,
        "config": {section: list(keys) for section, keys in part.config.items()},
    }
    if part.settle_seconds:
        document["settleSeconds"] = part.settle_seconds
    return document


def installed_routes(config: Config, layout: Layout) -> StaticRoutes:
    """Return the config's static routes, rules and kept interfaces if they are installed.

    If others are installed, or the installed ones can't be read, return none.
    """
    static = config.static_routes
    try:
        installed = Manifest.load(layout).config
    except FileError:  # the doctor reports this error
        return StaticRoutes()
    return static if installed.static_routes == static else StaticRoutes()
