#!/usr/bin/python
# The hostrouting authors, MIT license
"""The Ansible module ``apply``."""

from __future__ import annotations

DOCUMENTATION = r"""
module: apply
short_description: Install a config's routes, check and gate
description:
  - Runs C(hostrouting apply). In check mode, and for the diff, it runs C(hostrouting plan).
  - If the check fails in STRICT mode, the task fails.
  - Shows the command's warnings, also in check mode. Warns if it is in doubt which interface is the
    uplink (the notes C(CONTESTED) and C(MOVED)).
author:
  - The hostrouting authors (@hostrouting)
options:
  config:
    description: The config, as a mapping, or the path of a file on the node.
    type: raw
    default: /etc/aks-flex-node/config.json
  try_seconds:
    description:
      - Install the routes in the kernel for this number of seconds.
        systemd then restores the installed routes.
      - M(hostrouting.hostrouting.confirm) keeps the new routes and installs the rest.
    type: int
  executable:
    description: The C(hostrouting) command of the node.
    type: path
    default: hostrouting
attributes:
  check_mode:
    support: full
    description: Shows what would change without changing anything.
  diff_mode:
    support: full
    description: The output of C(hostrouting plan). With C(-v), it shows files as diffs.
"""

EXAMPLES = r"""
- name: Try the routes for five minutes
  hostrouting.hostrouting.apply:
    config: "{{ hostrouting_config }}"
    try_seconds: 300
"""

RETURN = r"""
report:
  description:
    - The output of C(hostrouting apply --output json), even if it fails.
      In check mode, that of C(plan).
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hostrouting.hostrouting.plugins.module_utils.command import (
    CONFIG,
    EXECUTABLE,
    config_file,
    refusal_of,
    run,
)

PLAN_CODES = (0, 2)


def main() -> None:
    """Run ``hostrouting apply``."""
    spec = {"try_seconds": {"type": "int"}, **CONFIG, **EXECUTABLE}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    config, seconds, more = config_file(module), module.params["try_seconds"], {}
    if module._diff:
        verbose = ["-v"] if module._verbosity else []
        command = [module.params["executable"], "plan", *verbose, config]
        more["diff"] = {"prepared": module.run_command(command)[1]}
    if module.check_mode:
        report = run(module, ["plan", "--output", "json", config], fine=PLAN_CODES)
        if refusal := refusal_of(report):
            module.fail_json(msg=refusal, report=report)
    else:
        tried = [] if seconds is None else ["--try", str(seconds)]
        report = run(module, ["apply", *tried, "--output", "json", config])
    module.exit_json(changed=report["changed"], report=report, **more)


if __name__ == "__main__":
    main()
