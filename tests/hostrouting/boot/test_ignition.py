"""An Ignition document has the files of an installation and conforms to specification 3.4.0."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from ignition_documents import written
from jsonschema import Draft202012Validator

from hostrouting import Config, Layout
from hostrouting.boot.bundle import ignition, rendered_files

if TYPE_CHECKING:
    from pathlib import Path

LAYOUT = Layout("/x")
CONSUMERS = ("systemd-nspawn@.service", "kubelet.service")


def closed(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with exactly these keys. Keys that end with a question mark are optional."""
    named = {name.removesuffix("?"): told for name, told in properties.items()}
    required = [name for name in properties if not name.endswith("?")]
    return {"type": "object", "properties": named, "required": required, "additionalProperties": False}


def several(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "uniqueItems": True}


TEXT = {"type": "string", "minLength": 1}
UNIT = {"type": "string", "pattern": r"^[A-Za-z0-9:_.\\@-]+\.service$"}
# The parts of https://coreos.github.io/ignition/configuration-v3_4/ that our documents use.
SCHEMA = closed(
    ignition=closed(version={"const": "3.4.0"}),
    storage=closed(
        files=several(
            closed(
                path={"type": "string", "pattern": "^(/[^/]+)+$"},
                mode={"type": "integer", "minimum": 0, "maximum": 0o7777},
                overwrite={"type": "boolean"},
                contents=closed(compression={"enum": ["gzip"]}, source={"type": "string", "pattern": "^data:"}),
            )
        )
    ),
    systemd=closed(
        units=several(
            closed(
                name=UNIT,
                **{
                    "enabled?": {"type": "boolean"},
                    "contents?": TEXT,
                    "dropins?": several(closed(name={"type": "string", "pattern": r"\.conf$"}, contents=TEXT)),
                },
            )
        )
    ),
)


def config(consumer: str = CONSUMERS[0], **more: Any) -> Config:
    section = {
        "staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.1.0/24"}]},
        "routeOverlap": {"expectedCidrs": ["172.16.1.0/24"], "mode": "STRICT"},
        "consumer": consumer,
    }
    return Config.from_mapping({"hostRouting": section | more})


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_it_holds_every_file_with_its_mode(consumer: str) -> None:
    files = rendered_files(config(consumer), LAYOUT)
    expected = {LAYOUT.relative(file.path): (file.text, file.mode) for file in files}
    document = ignition(config(consumer))
    assert written(document) == expected
    units = {unit["name"]: unit for unit in document["systemd"]["units"]}
    assert {name for name, unit in units.items() if unit.get("enabled")} == {
        "static-routes.service",
        "check-route-overlap.service",
    }
    assert [each["name"] for each in units[consumer]["dropins"]] == ["00-hostrouting.conf", "zz-hostrouting.conf"]
    assert units[consumer].keys() == {"name", "dropins"}, "the consumer's owner enables it"


@pytest.mark.parametrize("more", [{}, {"routeOverlap": {}}, {"watch": {"enabled": True}}, {"consumer": CONSUMERS[1]}])
def test_it_fits_the_schema(more: dict[str, Any]) -> None:
    document = ignition(config(**more))
    Draft202012Validator(SCHEMA).validate(document)
    paths = [file["path"] for file in document["storage"]["files"]]
    assert len({*paths}) == len(paths)


@pytest.mark.ci
def test_the_reference_validator_accepts_it(tmp_path: Path) -> None:
    program = shutil.which("ignition-validate")
    if program is None:
        pytest.skip("no ignition-validate on this machine")
    path, text = tmp_path / "routing.ign", json.dumps(ignition(config()))
    # Ignition 2.14 of Debian only knows the experimental name of the version.
    for version in ("3.4.0", "3.4.0-experimental"):
        path.write_text(text.replace('"3.4.0"', f'"{version}"'))
        done = subprocess.run([program, str(path)], capture_output=True, text=True, check=False)
        if "unsupported config version" not in done.stderr:
            break
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_it_fits_into_azures_custom_data() -> None:
    routes = [{"destination": f"172.16.{number}.0/24"} for number in range(64)]
    document = ignition(config(staticRoutes={"enabled": True, "routes": routes}))
    assert len(json.dumps(document)) < 65536


def test_an_empty_config_is_an_empty_document() -> None:
    document = ignition(Config())
    assert (document["storage"], document["systemd"]) == ({"files": []}, {"units": []})
