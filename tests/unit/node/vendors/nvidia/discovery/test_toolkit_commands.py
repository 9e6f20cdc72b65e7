"""How the host's toolkit is run: below its root, with bounds on time and output."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dradriver.errors import DriverError
from dradriver.node.vendors.nvidia.discovery import ctk

STATIC = """
#include <stdio.h>
int main(int count, char **words) {
    if (count == 1) { fprintf(stderr, "one\\nlast words\\n"); return 3; }
    for (int i = 0; i < count; i++) puts(words[i]);
    FILE *file = fopen("/inside", "r");
    puts(file ? "in the root" : "outside");
    return 0;
}
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its root")
def test_a_command_runs_with_the_hosts_root_as_its_own(tmp_path: Path) -> None:
    source = tmp_path / "ctk.c"
    source.write_text(STATIC)
    done = subprocess.run(["cc", "-static", str(source), "-o", str(tmp_path / "ctk")], check=False, timeout=60)
    if done.returncode:
        pytest.skip("no static C library")
    (tmp_path / "inside").touch()
    assert ctk.run(tmp_path, ["/ctk", "cdi"]) == b"/ctk\ncdi\nin the root\n"
    with pytest.raises(DriverError, match=r"/ctk cdi generate failed \(3\): last words"):
        ctk.run(tmp_path, ["/ctk"])
    with pytest.raises(DriverError, match="/none"):
        ctk.run(tmp_path, ["/none"])


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "nvidia-ctk"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_command_has_a_folder_for_the_file_that_it_makes_before_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As nvidia-ctk does, where TMPDIR says, else in the /tmp of hosts that have it read-only."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(ctk, "_WRITABLE", (str(tmp_path / "missing")[1:], str(folder)[1:]))
    makes = 'set -eu; file="$TMPDIR/specification"; echo made >"$file"; cat "$file"; echo "$file"; rm "$file"'
    assert ctk.run(Path("/"), [script(tmp_path, makes)]).decode() == f"made\n{folder}/specification\n"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("where", ["", ">&2"])
def test_a_command_that_prints_without_end_is_ended(tmp_path: Path, where: str) -> None:
    with pytest.raises(DriverError, match=f"it prints more than {ctk.MOST_BYTES} bytes"):
        ctk.run(Path("/"), [script(tmp_path, f"exec yes {where}")])


@pytest.mark.slow
def test_what_a_command_that_hangs_started_ends_with_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    hold = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(DriverError, match="timed out"):
            ctk.run(Path("/"), [script(tmp_path, f"sleep 60 >{pipe} & exec sleep 60")], timeout_s=0.5)
        os.set_blocking(hold, True)
        assert os.read(hold, 1) == b""  # once nobody can write any more
    finally:
        os.close(hold)
