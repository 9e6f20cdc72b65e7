from __future__ import annotations

import pytest

from dradriver.topology import profiles
from dradriver.topology.errors import TopologyError
from dradriver.topology.nccl import tuning


@pytest.mark.parametrize("name", tuning.PROFILES)
def test_every_profile_has_values_that_nccl_takes_and_a_reason_for_each(name: str) -> None:
    for line in tuning.PROFILES[name]:
        tuning.check_variable(line.name, line.value)
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_ALGO", "Ring,Tree"),
        ("NCCL_ALGO", "^NVLS"),
        ("NCCL_P2P_LEVEL", "NVL"),
        ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1"),
        ("NCCL_SOCKET_IFNAME", "^lo,docker0"),
        ("NCCL_MAX_CTAS", "64"),
    ],
)
def test_what_nccl_takes_passes(name: str, value: str) -> None:
    tuning.check_variable(name, value)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("NCCL_ALGO", "NVLink,IB", "is not what NCCL takes; write names as Ring or NVLS"),
        ("NCCL_P2P_LEVEL", "5", "write LOC, NVL, PIX"),
        ("NCCL_NET_GDR_LEVEL", "NVL", "write LOC, PIX"),
        ("NCCL_MAX_CTAS", "65", "a number from 1 to 64"),
        ("NCCL_NVLS_ENABLE", "1\nX=2", "0, 1 or 2"),
        ("NCCL_NVLS_ENABLE", "1\n", "0, 1 or 2"),
        ("NCCL_NVLINK_ENABLE", "1", r"no NCCL variable that can be set here \(did you mean NCCL_"),
        ("LD_PRELOAD", "/x", "no NCCL variable"),
    ],
)
def test_what_articles_recommend_and_nccl_does_not_know_is_refused(name: str, value: str, said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        tuning.check_variable(name, value)
