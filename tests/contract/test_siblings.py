"""What only the scheduler sees, with a real one: no pod stays on a node that it refuses, and siblings keep apart."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import needs
from tests.cluster.nodeless import Nodeless
from tests.paths import REPO

pytestmark = [pytest.mark.cluster, pytest.mark.helm]
NAME = "siblings"


def test_refused_pods_come_to_another_node_and_siblings_to_nodes_of_their_own() -> None:
    needs.real_cluster()
    plane = Nodeless(NAME)
    with plane.running():
        command = [*plane.enter(), "env", f"--chdir={REPO}", sys.executable, "-m", "tests.contract.siblings", NAME]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
