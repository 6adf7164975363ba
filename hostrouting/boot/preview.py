"""What has to change for the next boot, told without changing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.boot import files
from hostrouting.boot.manifest import Manifest
from hostrouting.boot.parts import Part, wanted_files, wanted_manifest, wanted_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostrouting.boot.host import Host
    from hostrouting.config.routing import Config


@attrs.frozen
class FileChange:
    """A file that differs from what a config asks for.

    Args:
        path: as the running system sees it.
        before: its content; None: it isn't there.
        after: the content asked for; None: it goes.
    """

    path: str
    before: str | None
    after: str | None


@attrs.frozen
class BootPlan:
    """What has to change for the next boot.

    Args:
        files: that are written or removed.
        enable: units that shall start at boot and don't.
        disable: units that start at boot and shall not.
    """

    files: tuple[FileChange, ...] = ()
    enable: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether everything is as asked."""
        return not (self.files or self.enable or self.disable)

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON; contents as they would be."""
        return {
            "files": [{"path": change.path, "content": change.after} for change in self.files],
            "enable": list(self.enable),
            "disable": list(self.disable),
        }


def plan_boot(config: Config, host: Host) -> BootPlan:
    """Compare what stays for the next boot with what a config asks for, changing nothing.

    Args:
        config: what is wanted; parts that it can't ask for stay as they are.
        host: where.

    Returns:
        The plan.

    Raises:
        FileError: a file can't be read.
        UnitError: systemd can't be asked.
    """
    there = Manifest.load(host.layout)
    parts = wanted_parts(config, host.layout)
    return _plan(host, there, wanted_manifest(there, config, parts, host.layout), parts)


def plan_part(host: Host, consumer: str, part: Part | None, name: str) -> BootPlan:
    """Compare what stays for the next boot with what it would be with a part, or without it, changing nothing.

    Args:
        host: where.
        consumer: the unit to hold back.
        part: as ``install_part`` would install it; None: ``remove_part`` would take it back.
        name: of the part.

    Returns:
        The plan; all other parts stay as they are.

    Raises:
        FileError: a file can't be read.
        UnitError: systemd can't be asked.
    """
    there = Manifest.load(host.layout)
    if part is not None:
        wanted = there.with_part(name, part.installed(host.layout))
        return _plan(host, there, attrs.evolve(wanted, consumer=consumer), [part])
    if name not in there.parts:
        return BootPlan()
    return _plan(host, there, there.without(name), [])


def _plan(host: Host, there: Manifest, wanted: Manifest, parts: Sequence[Part]) -> BootPlan:
    """What is between a manifest and another one, of whose parts some are written anew."""
    layout = host.layout
    wanted = attrs.evolve(wanted, former=())
    goes = {*there.files(layout)} - {*wanted.files(layout)} - {layout.enablement(name) for name in there.parts}
    changes = [
        FileChange(layout.relative(file.path), before, file.text)
        for file in wanted_files(layout, wanted, parts)
        if (before := files.read_text(file.path)) != file.text
    ]
    changes += [
        FileChange(layout.relative(path), before, None)
        for path in sorted(goes)
        if (before := files.read_text(path)) is not None
    ]
    known = {*there.parts, *(part.name for part in parts)}
    enabled = {
        name for name in known if files.read_text(layout.unit(name)) and host.units.is_enabled(f"{name}.service")
    }
    return BootPlan(
        tuple(changes),
        enable=tuple(f"{part.name}.service" for part in parts if part.name not in enabled),
        disable=tuple(f"{name}.service" for name in there.parts if name in enabled and name not in wanted.parts),
    )
