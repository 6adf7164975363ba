"""An Ansible connection plugin that reaches a booted machine through the inventory variable
``ansible_way_in``.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = """
name: nodes_connection
short_description: Into a booted machine
description: [Into a booted machine.]
options:
  way_in:
    description: The words that stand before a program that is to run inside.
    vars: [{name: ansible_way_in}]
    required: true
"""


class Connection(ConnectionBase):  # type: ignore[misc]
    """A connection that starts a new process for each command."""

    transport = "nodes_connection"
    has_pipelining = True

    def _connect(self) -> Connection:
        self._connected = True
        return self

    def exec_command(
        self, cmd: str, in_data: bytes | None = None, sudoable: bool = True
    ) -> tuple[int, bytes, bytes]:
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        return self._run(cmd, in_data or b"")

    def put_file(self, in_path: str, out_path: str) -> None:
        self._run(f"cat >{shlex.quote(out_path)}", Path(in_path).read_bytes())

    def fetch_file(self, in_path: str, out_path: str) -> None:
        Path(out_path).write_bytes(self._run(f"cat {shlex.quote(in_path)}", b"")[1])

    def close(self) -> None:
        """Do nothing: there is no process or file to clean up."""
        self._connected = False

    def _run(self, line: str, given: bytes) -> tuple[int, bytes, bytes]:
        done = subprocess.run(
            [*shlex.split(self.get_option("way_in")), "sh", "-c", line],
            input=given,
            capture_output=True,
            check=False,
        )
        if b"nsenter: " in done.stderr:
            raise AnsibleConnectionFailure(done.stderr.decode())
        return done.returncode, done.stdout, done.stderr
