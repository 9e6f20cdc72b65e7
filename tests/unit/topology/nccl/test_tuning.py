from __future__ import annotations

import re

import pytest

from dradriver.topology import profiles
from dradriver.topology.nccl import tuning

# What NCCL 2.18 to 2.30 take (NVIDIA's NCCL user guide, env.rst).
PATHS = "LOC|PIX|PXB|P2C|PHB|SYS"
ACCEPTED = {
    "NCCL_P2P_LEVEL": f"{PATHS}|NVL",
    "NCCL_NET_GDR_LEVEL": PATHS,
    "NCCL_NVLS_ENABLE": "[012]",
    "NCCL_CROSS_NIC": "[012]",
    "NCCL_CUMEM_ENABLE": "[01]",
    "NCCL_IGNORE_CPU_AFFINITY": "[01]",
}


@pytest.mark.parametrize("name", tuning.PROFILES)
def test_every_profile_has_values_that_nccl_takes_and_a_reason_for_each(name: str) -> None:
    for line in tuning.PROFILES[name]:
        assert re.fullmatch(ACCEPTED[line.name], line.value)
        assert line.reason


@pytest.mark.parametrize("name", [*tuning.PROFILES, "auto"])
def test_the_file_is_what_every_nccl_reads(name: str) -> None:
    text = tuning.conf(name, profiles.load("dgx-h100"))
    assert text.endswith("\n")
    for line in text.splitlines():
        assert len(line) < 1024  # NCCL's buffer
        assert line.startswith("#") != ("=" in line)  # NCCL before 2.24 takes a comment with = for a variable


@pytest.mark.parametrize(
    ("machine", "profile"),
    [("dgx-h100", "nvswitch"), ("dgx1-v100", "nvlink"), ("a100-pcie-x8-bridge-pairs", "nvlink"), ("l40s-x8", "pcie")],
)
def test_the_profile_fits_the_machines_own_links(machine: str, profile: str) -> None:
    assert tuning.profile_of(profiles.load(machine)) == profile
