"""Names of MIG profiles: one reader, whoever says them."""

from __future__ import annotations

import msgspec
import pytest

from dradriver.api.base import names
from dradriver.api.base.errors import WordError
from dradriver.api.claims import opaque_config
from dradriver.api.vocabulary import values
from dradriver.topology.check import check_profile
from dradriver.topology.errors import TopologyError
from dradriver.topology.identifiers import is_mig_profile
from dradriver.topology.machine import MigProfile
from tests.fakes.parts import PROFILES

REAL = (
    "1g.5gb", "1g.5gb+me", "1g.10gb", "1g.10gb+me", "1g.20gb", "2g.10gb", "3g.40gb", "4g.40gb", "7g.80gb", "1g.6gb",
    "2g.12gb+me", "4g.24gb", "1g.12gb+me", "7g.94gb", "1g.18gb+me", "7g.141gb", "1g.23gb+me", "7g.180gb", "7g.269gb",
    "1g.24gb", "1g.24gb+me", "1g.24gb+gfx", "1g.24gb+me.all", "1g.24gb-me", "2g.48gb+gfx", "2g.48gb+me.all",
    "2g.48gb-me", "4g.96gb+gfx",
)  # fmt: skip
NONE = (
    "", "1g", "10gb", "0g.5gb", "1g.0gb", "1c.3g.40gb", "1c.1g.5gb+me", "MIG 1g.10gb", "1g.10gb+", "1g.10gb-",
    "1g.10gb,me", "1g.10gb+me,gfx", "1g.10gb+me.", "1g.10gb+.all", "1g.10gb+ME", "1G.10GB", "1g.10gb\n", " 1g.10gb",
    '1g.10gb" || true', "1g.10gb+" + "m" * 9, "1g.10gb+a+b+c", "\u0661g.10gb",
)  # fmt: skip


@pytest.mark.parametrize("name", [*REAL, *PROFILES])
def test_the_names_that_nvml_gives_are_read_everywhere(name: str) -> None:
    assert is_mig_profile(name)
    assert values.mig_profile(name) == name
    assert opaque_config.read(configured(name)).mig["r"].profile == name
    check_profile(profile(name), "here")


@pytest.mark.parametrize("name", NONE)
def test_all_others_are_read_nowhere(name: str) -> None:
    assert not is_mig_profile(name)
    assert values.mig_profile(name) in (None, name.strip()), "around an annotation's value there may be spaces"
    with pytest.raises(WordError, match="Write it as nvidia-smi mig -lgip prints it"):
        opaque_config.read(configured(name))
    with pytest.raises(TopologyError, match="Write it as nvidia-smi mig -lgip prints it"):
        check_profile(profile(name), "here")


def configured(name: str) -> bytes:
    told = {"apiVersion": names.CONFIG_API_VERSION, "kind": names.CONFIG_KIND, "mig": {"r": {"profile": name}}}
    return msgspec.json.encode(told)


def profile(name: str) -> MigProfile:
    return MigProfile(id=0, name=name, compute=1, memory_mib=1, most=1, starts=(0,), size=1)
