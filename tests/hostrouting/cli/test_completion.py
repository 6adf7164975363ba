"""Tests that each shell completes our commands with the script from ``hostrouting completion``."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from hostrouting import Host, Layout
from hostrouting.cli import main
from hostrouting.cli.arguments import _WORDS as WORDS
from hostrouting.testing import FakeKernel, FakeSystemd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Complete = Callable[[str], list[str]]

BASH = r"""
. "$SCRIPT"
read -r _ _ _ _ function _ <<<"$(complete -p hostrouting)"
read -ra COMP_WORDS <<<"$LINE"
[[ $LINE == *' ' ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_LINE=$LINE COMP_POINT=${#LINE}
"$function" hostrouting "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(params=["bash", "fish"])
def complete(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Complete:
    """Return a function that returns a shell's completions for a line."""
    script = printed(request.param, tmp_path, capsys)
    monkeypatch.chdir(tmp_path)
    commands = {
        "bash": ["bash", "--norc", "-c", BASH],
        "fish": ["fish", "--no-config", "-c", 'source "$SCRIPT"; complete -C "$LINE"'],
    }

    def proposals(line: str) -> list[str]:
        environment = os.environ | {"SCRIPT": str(script), "LINE": line, "HOME": str(tmp_path)}
        done = subprocess.run(
            commands[request.param], env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stderr == ""
        return sorted({text.partition("\t")[0].strip() for text in done.stdout.splitlines()} - {""})

    return proposals


def printed(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    host = Host(routes=FakeKernel(), units=FakeSystemd(), layout=Layout(folder / "root"))
    assert main(["completion", shell], host=host) == 0
    script = folder / "_hostrouting"
    script.write_text(capsys.readouterr().out)
    return script


def test_all_commands_are_proposed(complete: Complete) -> None:
    assert set(complete("hostrouting ")) >= set(WORDS)
    assert complete("hostrouting lb-probe ") == ["apply", "plan", "remove"]


def test_options_and_their_values_are_proposed(complete: Complete) -> None:
    assert {"--cidr", "--output", "--snapshot"} <= set(complete("hostrouting check --"))
    assert complete("hostrouting fix --format n") == ["netplan", "networkd"]
    assert complete("hostrouting completion z") == ["zsh"]


def test_files_and_folders_are_proposed_as_arguments(complete: Complete, tmp_path: Path) -> None:
    (tmp_path / "node.json").touch()
    (tmp_path / "nodes").mkdir()
    assert "node.json" in complete("hostrouting check no")
    assert "node.json" in complete("hostrouting fix --snapshot no")
    assert [name.rstrip("/") for name in complete("hostrouting apply --root no")] == ["nodes"]


ZSHRC = """
fpath=("$PWD" $fpath)
autoload -Uz compinit
compinit -u -D
hostrouting() { print -r -- "typed: $*" }
PS1='ready>'
"""


def test_zsh_completes_typed_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed("zsh", tmp_path, capsys)
    (tmp_path / ".zshrc").write_text(ZSHRC)
    (tmp_path / "node.json").touch()
    environment = os.environ | {"TERM": "dumb", "ZDOTDIR": str(tmp_path)}
    controller, terminal = pty.openpty()
    with os.fdopen(controller, "r+b", buffering=0) as stream, os.fdopen(terminal, "r+b", buffering=0) as end:
        zsh = subprocess.Popen(
            ["zsh", "-d", "-i"],
            stdin=end,
            stdout=end,
            stderr=end,
            cwd=tmp_path,
            env=environment,
            start_new_session=True,
        )
        heard = b""
        for words, typed in (
            (b"ready>", b"hostrouting chec\t--snap\tno\t--outp\tnag\t\n"),
            (b"typed: check --snapshot node.json --output nagios", b"exit\n"),
        ):
            while words not in heard:
                heard += stream.read(4096)
            stream.write(typed)
        zsh.wait()
