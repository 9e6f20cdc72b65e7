"""Labels of files that containers are given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dradriver.node import selinux
from tests import needs


def test_what_containers_are_given_is_labelled_where_selinux_is_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.touch()
    selinux.label(file)
    assert selinux.mount_option() == ""
    monkeypatch.setattr(selinux, "_ON", tmp_path)
    assert selinux.mount_option() == ',context="system_u:object_r:container_file_t:s0"'
    selinux.label(file)
    if "cannot be labelled" in caplog.text:
        needs.missing("no right to label files")
    assert os.getxattr(file, "security.selinux") == b"system_u:object_r:container_file_t:s0\0"
    selinux.label(tmp_path / "nothing")  # what cannot be labelled keeps no pod from starting
    assert "nothing cannot be labelled for containers" in caplog.text
