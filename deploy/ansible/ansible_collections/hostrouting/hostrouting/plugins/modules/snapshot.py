#!/usr/bin/python
# The hostrouting authors, MIT license
"""The Ansible module ``snapshot``."""

from __future__ import annotations

DOCUMENTATION = r"""
module: snapshot
short_description: Take a snapshot of a node
description:
  - Runs C(hostrouting snapshot), which records links, addresses, rules, routes and nexthops.
  - It changes nothing and needs no privileges.
author:
  - The hostrouting authors (@hostrouting)
options:
  executable:
    description: The C(hostrouting) command of the node.
    type: path
    default: hostrouting
attributes:
  check_mode:
    support: full
    description: The module only reads.
"""

EXAMPLES = r"""
- name: Take a snapshot of the node
  hostrouting.hostrouting.snapshot:
  register: recorded
"""

RETURN = r"""
report:
  description: The snapshot, for C(hostrouting judge) and C(--snapshot).
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hostrouting.hostrouting.plugins.module_utils.command import EXECUTABLE, run


def main() -> None:
    """Run ``hostrouting snapshot``."""
    module = AnsibleModule(argument_spec=EXECUTABLE, supports_check_mode=True)
    module.exit_json(changed=False, report=run(module, ["snapshot"]))


if __name__ == "__main__":
    main()
