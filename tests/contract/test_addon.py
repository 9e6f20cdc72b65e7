"""Beside NVIDIA's driver, with a real API server and scheduler: the right GPUs, also after their names have shifted."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import needs
from tests.cluster.nodeless import Nodeless
from tests.paths import REPO

pytestmark = [pytest.mark.cluster, pytest.mark.helm]
NAME = "addon"


def test_pods_get_the_gpus_that_were_chosen_also_after_a_shift() -> None:
    needs.real_cluster()
    plane = Nodeless(NAME)
    with plane.running():
        command = [*plane.enter(), "env", f"--chdir={REPO}", sys.executable, "-m", "tests.contract.beside_nvidia", NAME]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
