"""What is installed for the next boot: the parts, their files, and the manifest that names them."""

from __future__ import annotations

import json
import sys
from importlib import resources
from typing import TYPE_CHECKING

import attrs

from hostrouting.boot import files
from hostrouting.boot.gate import CHECK, FLUSHERS, GATED, PROBE, ROUTES, drop_in_text
from hostrouting.boot.render import render_check_route_overlap_script, render_static_routes_script
from hostrouting.config.routing import Config, OverlapMode
from hostrouting.model.errors import ConfigError, FileError, UnitError
from hostrouting.model.routes import Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hostrouting.boot.layout import Layout

__all__ = [
    "CONFIGURED",
    "PARTS",
    "WATCH",
    "BootFile",
    "Manifest",
    "Part",
    "check_part",
    "is_watched",
    "part_paths",
    "routes_part",
    "unit_text",
    "wanted_files",
    "wanted_parts",
    "watch_part",
]

WATCH = "hostrouting-watch"
PARTS = (*GATED, WATCH)

# What host routing's config asks for, or, by not asking, takes back; the others are somebody else's to ask for.
CONFIGURED = (ROUTES, CHECK, WATCH)


@attrs.frozen
class BootFile:
    """A file with its content and permission bits."""

    path: Path
    text: str
    mode: int = 0o644


@attrs.frozen
class Part:
    """One of the things that run at boot: those of the gate, and the watcher.

    Args:
        name: of its unit, and of its script, if it has one.
        is_blocking: whether its failure holds the consumer back.
        files: script and unit, and what else goes with them; scripts before units.
    """

    name: str
    is_blocking: bool
    files: tuple[BootFile, ...]


@attrs.frozen
class Manifest:
    """What was installed.

    Args:
        consumer: the unit that is held back.
        parts: the installed parts, each with whether its failure holds the consumer back.
        folders: that were made for the files, as the running system sees them.
        former: units that were held back before and whose gate is still to be removed.
    """

    consumer: str = ""
    parts: dict[str, bool] = attrs.field(factory=dict)
    folders: tuple[str, ...] = ()
    former: tuple[str, ...] = ()

    @classmethod
    def load(cls, layout: Layout) -> Manifest:
        """The manifest of a layout; an empty one if nothing was installed.

        Raises:
            FileError: it can't be read.
        """
        text = files.read_text(layout.manifest)
        if text is None:
            return cls()
        try:
            document = json.loads(text)
            parts = {str(name): bool(blocks) for name, blocks in document["parts"].items() if name in PARTS}
            # The names become parts of paths that are removed, so they go through the config's rule again.
            consumer, *former = (Config(consumer=name).consumer for name in [document["consumer"], *document["former"]])
            return cls(consumer, parts, tuple(map(str, document["folders"])), tuple(former))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError) as error:
            raise FileError(
                f"can't read the manifest {layout.manifest}: {error!r}; it names what to take back: mend it, or remove "
                "it to forget what was installed"
            ) from error

    @property
    def has_gate(self) -> bool:
        """Whether any part holds the consumer back, or reports at its start."""
        return any(name in self.parts for name in GATED)

    def to_text(self, layout: Layout) -> str:
        """The file's content; the files are named for whoever reads it."""
        document = {
            "schema": 1,
            "consumer": self.consumer,
            "parts": self.parts,
            "files": [layout.relative(path) for path in self.files(layout)],
            "folders": list(self.folders),
            "former": list(self.former),
        }
        return json.dumps(document, indent=2) + "\n"

    def files(self, layout: Layout) -> list[Path]:
        """Everything that is installed, but for the manifest."""
        paths = [layout.gate(name) for name in (self.consumer, *self.former)] if self.has_gate else []
        for name in self.parts:
            paths += part_paths(layout, name)
        return paths


PROTOCOL_NAMES = f"# hostrouting: the routes that it installs\n{int(Protocol.HOSTROUTING)}\thostrouting\n"

# Beyond its own waits a oneshot may take this long; then systemd ends it, and whoever is ordered after it goes on.
MARGIN_SECONDS = 30


def routes_part(config: Config, layout: Layout) -> Part:
    """What installs the static routes at boot; a failure holds the consumer back in either mode."""
    script = render_static_routes_script(config.static_routes.routes, wait_seconds=config.wait_seconds)
    return Part(
        ROUTES,
        is_blocking=True,
        files=(
            BootFile(layout.script(ROUTES), script, 0o755),
            BootFile(layout.unit(ROUTES), unit_text(ROUTES, config.wait_seconds)),
            BootFile(layout.protocol_names, PROTOCOL_NAMES),
        ),
    )


def check_part(config: Config, layout: Layout) -> Part:
    """What checks at boot; a failure holds the consumer back in STRICT mode."""
    overlap = config.route_overlap
    script = render_check_route_overlap_script(
        overlap.expected_cidrs,
        overlap.mode,
        wait_seconds=config.wait_seconds,
        container_devs=overlap.container_devs,
        allowed_devs=overlap.allowed_devs,
        settle_seconds=overlap.settle_seconds,
        coverage=overlap.coverage,
        foreseen=overlap.foreseen,
    )
    wait_seconds = max(config.wait_seconds, overlap.settle_seconds)
    return Part(
        CHECK,
        is_blocking=overlap.mode is OverlapMode.STRICT,
        files=(
            BootFile(layout.script(CHECK), script, 0o755),
            BootFile(layout.unit(CHECK), unit_text(CHECK, wait_seconds)),
        ),
    )


def unit_text(name: str, wait_seconds: int) -> str:
    """The text of a oneshot's unit, which systemd ends if it takes much longer than its own waits."""
    return _asset(name).replace("@TIMEOUT_SECONDS@", str(wait_seconds + files.LOCK_WAIT_SECONDS + MARGIN_SECONDS))


def _asset(name: str) -> str:
    return resources.files("hostrouting.boot").joinpath("scripts", f"{name}.service").read_text(encoding="utf-8")


def watch_part(config: Config, layout: Layout) -> Part:
    """What keeps all of it true after boot; nothing waits for it, so nothing fails with it.

    Raises:
        UnitError: systemd can't run this Python.
    """
    python = sys.executable
    # string_is_safe in systemd's src/basic/string-util.c: no quoting helps.
    if not python or not python.isprintable() or any(letter in python for letter in "\"'\\"):
        raise UnitError(
            f"can't install {WATCH}.service: systemd refuses to run {python!r} for the characters in its path; "
            "install hostrouting elsewhere, or leave out watch.enabled"
        )
    textfile = config.watch.textfile
    folder = "" if textfile is None else f"ReadWritePaths={_quoted('-' + (textfile.rpartition('/')[0] or '/'))}\n"
    text = _asset(WATCH).replace("@READ_WRITE_PATHS@\n", folder).replace("@PYTHON@", _quoted(python))
    return Part(
        WATCH,
        is_blocking=False,
        files=(
            BootFile(layout.watch_config, json.dumps(config.to_mapping(), indent=2) + "\n"),
            BootFile(layout.unit(WATCH), text),
        ),
    )


def _quoted(word: str) -> str:
    """One word of a unit's line, systemd.syntax(7)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def wanted_parts(config: Config, layout: Layout) -> tuple[Part, ...]:
    """The parts that a config asks for."""
    return (
        *((routes_part(config, layout),) if config.static_routes.routes else ()),
        *((check_part(config, layout),) if config.route_overlap.expected_cidrs else ()),
        *((watch_part(config, layout),) if is_watched(config) else ()),
    )


def is_watched(config: Config) -> bool:
    """Whether a config asks for a watcher, and gives it something to do."""
    return config.watch.enabled and bool(config.static_routes.routes or config.route_overlap.expected_cidrs)


def part_paths(layout: Layout, name: str) -> list[Path]:
    """The files of a part: units first, as they go."""
    if name == WATCH:
        return [layout.enablement(name), layout.unit(name), layout.watch_config]
    own = [layout.enablement(name), layout.unit(name), layout.script(name)]
    if name == PROBE:
        return [*map(layout.flush_drop_in, FLUSHERS), *own, layout.probe_rules]
    return [*own, layout.protocol_names] if name == ROUTES else own


def wanted_files(layout: Layout, manifest: Manifest, parts: Iterable[Part]) -> list[BootFile]:
    """All files of some parts and of the gate, in the order in which they are written."""
    wanted = [file for part in parts for file in part.files]
    if manifest.has_gate:
        wanted.append(BootFile(layout.gate(manifest.consumer), drop_in_text(manifest.parts)))
    return wanted
