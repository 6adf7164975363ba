#!/usr/bin/python
# The hostrouting authors, MIT license
"""The Ansible module ``config``."""

from __future__ import annotations

DOCUMENTATION = r"""
module: config
short_description: Write the config into a file that is shared with other components
description:
  - Runs C(hostrouting config set), which writes the keys C(hostRouting) and C(hostNetworking).
  - All other keys, the mode and the owner of the file stay.
  - If the file changes, keeps a backup next to it, with the same mode and owner.
author:
  - The hostrouting authors (@hostrouting)
options:
  config:
    description: The config, as a mapping, or the path of a file on the node.
    type: raw
    required: true
  path:
    description: The file on the node.
    type: path
    default: /etc/aks-flex-node/config.json
  executable:
    description: The C(hostrouting) command of the node.
    type: path
    default: hostrouting
attributes:
  check_mode:
    support: full
    description: Shows whether anything would change without changing anything.
"""

EXAMPLES = r"""
- name: Write the config
  hostrouting.hostrouting.config:
    config: "{{ hostrouting_config }}"
"""

RETURN = r"""
backup_file:
  description: The path of the backup.
  returned: where a file was changed
  type: str
"""

import shutil
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hostrouting.hostrouting.plugins.module_utils.command import (
    CONFIG,
    EXECUTABLE,
    config_file,
    run,
)


def main() -> None:
    """Run the command on a copy first, so that only a file that changes gets a backup."""
    spec = {
        "path": CONFIG["config"] | {"type": "path"},
        "config": {"type": "raw", "required": True},
        **EXECUTABLE,
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    path, given, more = module.params["path"], config_file(module), {}
    copy = f"{tempfile.mkdtemp(dir=module.tmpdir)}/config.json"
    if is_there := Path(path).exists():
        shutil.copyfile(path, copy)

    def set_keys(file: str) -> bool:
        return bool(
            run(module, ["config", "set", file, "--from", given, "--output", "json"])["changed"]
        )

    changed = set_keys(copy)
    if changed and not module.check_mode:
        if is_there:
            more["backup_file"] = module.backup_local(path)
        set_keys(path)
    module.exit_json(changed=changed, **more)


if __name__ == "__main__":
    main()
