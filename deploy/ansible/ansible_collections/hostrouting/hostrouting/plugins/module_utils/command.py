"""Run the hostrouting command of a node, and return the document that it prints."""

from __future__ import annotations

import json
import os
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ansible.module_utils.basic import AnsibleModule

EXECUTABLE = {"executable": {"type": "path", "default": "hostrouting"}}
CONFIG = {"config": {"type": "raw", "default": "/etc/aks-flex-node/config.json"}}

# The notes of a check that passes, perhaps on the wrong uplink.
DECISIONS = ("CONTESTED", "MOVED")


def config_file(module: AnsibleModule) -> str:
    """Return the path of the config, after writing it to a temporary file if it is a mapping."""
    config: Any = module.params["config"]
    if not isinstance(config, dict):
        return str(config)
    handle, path = tempfile.mkstemp(suffix=".json", dir=module.tmpdir)
    with os.fdopen(handle, "w") as file:
        json.dump(config, file)
    return path


def run(module: AnsibleModule, words: list[str], fine: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """Run a command, and return the document that it prints.

    Fail the task if its exit code isn't in ``fine``.
    """
    code, out, err = module.run_command([module.params["executable"], *words])
    try:
        report: dict[str, Any] = json.loads(out)
    except ValueError:
        module.fail_json(msg=err.strip() or out.strip() or "it said nothing", rc=code)
    for warning in warnings_of(report):
        module.warn(f"{report.get('host')}: {warning}")
    if code not in fine:
        changed = report.get("changed", False)
        module.fail_json(msg=_why(report) or err.strip(), rc=code, changed=changed, report=report)
    return report


def warnings_of(report: dict[str, Any]) -> list[str]:
    """Return the warnings of a document, and the notes of its check that ask for a decision.

    The notes on routes are texts. The notes of a check have a kind.
    """
    check = report.get("overlap") or {}  # null for a plan, and for apply --routes-only
    warnings = [*report.get("warnings", ())]
    for note in (*report.get("notes", ()), *check.get("notes", ())):
        if isinstance(note, str):
            warnings.append(note)
        elif note["kind"] in DECISIONS:
            warnings.append(f"{note['kind']}: {note['message']}")
    return warnings


def refusal_of(plan: dict[str, Any]) -> str:
    """Return why apply would fail according to a plan, or an empty string.

    If something is missing, apply waits for it, and may succeed.
    """
    is_refused = plan["wouldFail"] and plan["missing"] is None
    return "\n".join(plan["warnings"]) if is_refused else ""


def _why(report: dict[str, Any]) -> str | None:
    findings = [finding["message"] for finding in report.get("findings", ())]
    error = "\n".join(filter(None, (report.get("error"), report.get("hint"))))
    return "\n".join(findings) or error or report.get("reason")
