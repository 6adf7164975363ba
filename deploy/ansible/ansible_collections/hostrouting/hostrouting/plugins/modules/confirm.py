#!/usr/bin/python
# The hostrouting authors, MIT license
"""The Ansible module ``confirm``."""

from __future__ import annotations

DOCUMENTATION = r"""
module: confirm
short_description: Keep the routes of a trial
description:
  - Runs C(hostrouting confirm), which keeps the routes that M(hostrouting.hostrouting.apply) with
    C(try_seconds) has installed in the kernel, and installs files, units and gate.
  - The task fails if no trial is in progress.
author:
  - The hostrouting authors (@hostrouting)
options:
  executable:
    description: The C(hostrouting) command of the node.
    type: path
    default: hostrouting
attributes:
  check_mode:
    support: none
    description: Skipped, because check mode begins no trial.
"""

EXAMPLES = r"""
- name: Keep the routes
  hostrouting.hostrouting.confirm:
"""

RETURN = r"""
report:
  description: The output of C(hostrouting confirm --output json), even if it fails.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hostrouting.hostrouting.plugins.module_utils.command import EXECUTABLE, run


def main() -> None:
    """Run ``hostrouting confirm``."""
    module = AnsibleModule(argument_spec=EXECUTABLE)
    report = run(module, ["confirm", "--output", "json"])
    module.exit_json(changed=report["changed"], report=report)


if __name__ == "__main__":
    main()
