"""Tests that an Ignition document contains an installation's files and conforms to specification 3.4.0."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from ignition_documents import written
from wanted import SHADOWED, config

from hostrouting import Config, Layout
from hostrouting.boot.bundle import ignition, rendered_files

if TYPE_CHECKING:
    from pathlib import Path

LAYOUT = Layout("/x")
CONSUMERS = ("systemd-nspawn@.service", "kubelet.service")


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_it_holds_every_file_with_its_mode(consumer: str) -> None:
    files = rendered_files(config(SHADOWED, consumer=consumer), LAYOUT)
    expected = {LAYOUT.relative(file.path): (file.text, file.mode) for file in files}
    document = ignition(config(SHADOWED, consumer=consumer))
    assert written(document) == expected
    units = {unit["name"]: unit for unit in document["systemd"]["units"]}
    assert {name for name, unit in units.items() if unit.get("enabled")} == {
        "static-routes.service",
        "check-route-overlap.service",
    }
    assert [each["name"] for each in units[consumer]["dropins"]] == ["00-hostrouting.conf", "zz-hostrouting.conf"]
    assert units[consumer].keys() == {"name", "dropins"}, "the consumer's owner enables it"


@pytest.mark.ci
def test_the_reference_validator_accepts_it(tmp_path: Path) -> None:
    program = shutil.which("ignition-validate")
    if program is None:
        pytest.skip("no ignition-validate on this machine")
    path, text = tmp_path / "routing.ign", json.dumps(ignition(config(SHADOWED, watch={"enabled": True})))
    # Debian's Ignition 2.14 knows only the experimental version name.
    for version in ("3.4.0", "3.4.0-experimental"):
        path.write_text(text.replace('"3.4.0"', f'"{version}"'))
        done = subprocess.run([program, str(path)], capture_output=True, text=True, check=False)
        if "unsupported config version" not in done.stderr:
            break
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_it_fits_into_azures_custom_data() -> None:
    routes = [f"172.{number // 256}.{number % 256}.0/24" for number in range(1000)]
    document = ignition(config(*routes))
    assert len(json.dumps(document)) < 65536


def test_an_empty_config_is_an_empty_document() -> None:
    document = ignition(Config())
    assert (document["storage"], document["systemd"]) == ({"files": []}, {"units": []})
