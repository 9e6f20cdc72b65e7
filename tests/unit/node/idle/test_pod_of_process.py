"""Whose a process is, by its control group."""

from __future__ import annotations

from pathlib import Path

import pytest

from dradriver.node.idle.pod_of_process import pod_of

UID = "0a1b2c3d-0000-4000-8000-00000000000f"
SLICE = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a1b2c3d_0000_4000_8000_00000000000f.slice"


@pytest.mark.parametrize(
    "text",
    [
        f"0::{SLICE}/cri-containerd-12.scope\n",
        f"0::{SLICE}\n",
        f"0::/kubepods/besteffort/pod{UID}/12\n",
        f"12:devices:/system.slice\n4:memory:/kubepods/pod{UID}\n",
        f"0::/../../kubepods/burstable/pod{UID}/12/own-child\n",
    ],
)
def test_the_pod_stands_in_its_path(text: str, tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(text)
    assert pod_of(7, tmp_path) == UID


@pytest.mark.parametrize(
    "text", ["0::/system.slice/sshd.service\n", "", "0::/", f"0::/user/podcast{UID}x\n", f"0::/x/pod{UID[:-1]}/y\n"]
)
def test_a_process_of_no_pod_is_unknown(text: str, tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(text)
    assert pod_of(7, tmp_path) is None
    assert pod_of(8, tmp_path) is None, "it has ended"
