"""How many files a reader opens who follows a route to the kernel, or a CIDR to its fix: those that are handed it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from node import build_node

import hostrouting
import phases
from hostrouting import Config, Host, Layout
from hostrouting.overlap.check import check_overlap
from hostrouting.routes.install import apply_routes
from hostrouting.tasks import install_routes
from hostrouting.tasks.install_routes import InstallRoutes
from hostrouting.testing import FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    from hostrouting.kernel.namespace import NamespaceKernel

pytestmark = pytest.mark.kernel

FOLLOWED = IPv4Network("172.16.1.0/24")
_DEPTH, _LENGTH = 4, 200


def carries(value: object, depth: int = 0) -> bool:
    """Whether a value is the prefix, as text or as a value, or holds it; what is packed for the kernel is out of hand."""
    if isinstance(value, str):
        return str(FOLLOWED.network_address) in value
    if isinstance(value, IPv4Network):
        return value == FOLLOWED
    inner: list[Any] = []
    if isinstance(value, Mapping):
        inner = list(value.values())
    elif isinstance(value, tuple | list | set | frozenset):
        inner = list(value)
    elif attrs.has(kind := type(value)):
        inner = [getattr(value, field.name, None) for field in attrs.fields(kind)]
    return depth < _DEPTH and any(carries(each, depth + 1) for each in inner[:_LENGTH])


class Trace:
    """The files of ours in which a function is called with what is followed."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        module = str(frame.f_globals.get("__name__"))
        if event != "call" or module.partition(".")[0] not in ("hostrouting", "phases") or "<" in code.co_filename:
            return
        sys.setprofile(None)
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(name != "self" and carries(frame.f_locals.get(name)) for name in names):
            self.files.add(module)
        sys.setprofile(self)

    def of(self, function: Callable[[], object]) -> set[str]:
        before = sys.getprofile()
        sys.setprofile(self)
        try:
            function()
        finally:
            sys.setprofile(before)
        return self.files


@pytest.fixture(autouse=True)
def loaded() -> None:
    """Whatever is loaded when it is first used would be traced as it loads."""
    for name in dir(hostrouting):
        getattr(hostrouting, name)


def config_file(folder: Path, section: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({"hostRouting": section | {"waitSeconds": 0}}))
    return path


def test_a_route_from_the_json_to_the_kernel(
    kernel: NamespaceKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_node(kernel)
    routes = [{"destination": str(FOLLOWED)}]
    path = config_file(tmp_path, {"staticRoutes": {"enabled": True, "routes": routes}})
    host = Host(routes=kernel, units=FakeSystemd(), layout=Layout(tmp_path))

    def apply_and_stop(*arguments: Any) -> None:
        apply_routes(*arguments)
        sys.setprofile(None)

    monkeypatch.setattr(install_routes, "apply_routes", apply_and_stop)
    files = Trace().of(lambda: InstallRoutes(Config.load(path), host=host).do(phases.CancelScope()))
    assert any(route.destination == FOLLOWED for route in kernel.routes())
    assert "hostrouting.kernel.rtnetlink.wire" in files
    assert len(files) <= 14, sorted(files)


def test_a_cidr_from_the_json_to_its_fix(kernel: NamespaceKernel, tmp_path: Path) -> None:
    build_node(kernel)
    path = config_file(tmp_path, {"routeOverlap": {"expectedCidrs": [str(FOLLOWED)]}})
    found: list[hostrouting.OverlapReport] = []
    files = Trace().of(
        lambda: found.append(check_overlap(Config.load(path).route_overlap, kernel, phases.CancelScope()))
    )
    assert [entry.destination for entry in found[0].remedy.routes] == [FOLLOWED]
    assert len(files) <= 18, sorted(files)
