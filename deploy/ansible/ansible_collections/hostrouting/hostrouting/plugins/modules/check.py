#!/usr/bin/python
# The hostrouting authors, MIT license
"""The Ansible module ``check``."""

from __future__ import annotations

DOCUMENTATION = r"""
module: check
short_description: Check a node's routes now
description:
  - Runs C(hostrouting check).
  - The task fails if a CIDR fails, even in WARN mode, or if there is no verdict.
  - Warns if it is in doubt which interface is the uplink (the notes C(CONTESTED) and C(MOVED)).
author:
  - The hostrouting authors (@hostrouting)
options:
  config:
    description: The config, as a mapping, or the path of a file on the node.
    type: raw
    default: /etc/aks-flex-node/config.json
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
- name: Check the node with its own config
  hostrouting.hostrouting.check:
"""

RETURN = r"""
report:
  description: The output of C(hostrouting check --output json).
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hostrouting.hostrouting.plugins.module_utils.command import (
    CONFIG,
    EXECUTABLE,
    config_file,
    run,
)


def main() -> None:
    """Run ``hostrouting check``."""
    module = AnsibleModule(argument_spec=dict(**CONFIG, **EXECUTABLE), supports_check_mode=True)
    module.exit_json(
        changed=False, report=run(module, ["check", "--output", "json", config_file(module)])
    )


if __name__ == "__main__":
    main()
