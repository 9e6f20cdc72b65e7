"""Whatever stands in a file, NCCL's reader, checker and writer answer with a result or with our own error.

What the writer makes of a file that the reader takes has no fault for the checker.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from dradriver.topology import nccl
from dradriver.topology.errors import TopologyError
from tests.bench import fuzz
from tests.effort import examples
from tests.fakes.nccl_files import BOTH, GOOD, LINKED, NET, PCILINKED, SWITCHED

INPUTS = 20_000
MANY = 1_000_000
FILES = (GOOD, BOTH, LINKED, NET, PCILINKED, SWITCHED)
_VALUE = re.compile(r'([a-z_]+)="([^"]*)"')
WORDS = {
    "numaid": ("0", "1", "-1", "7", "999999", "x", ""),
    "affinity": ("", "0000000f", "ff,00000000", ",".join(["ffffffff"] * 40), "0-3"),
    "arch": ("x86_64", "amd64", "aarch64", "arm64", "ppc64le", "riscv64", "", "a&b"),
    "vendor": ("GenuineIntel", "AMD", "AuthenticAMD", "Intel", "HygonGenuine", "VIA", "", "0x10de", "0x1000", "  "),
    "familyid": ("6", "175", "23", "0", "65536", "", "six"),
    "modelid": ("1", "143", "0", "65536", ""),
    "busid": ("0000:01:00.0", "0000:02:00.0", "ffff:ff:00.0", "ffff:ff:01.0", "10000:01:00.0", "00000000:0A:00.0", "x"),
    "class": ("0x060400", "0x060401", "0x030200", "0x020700", "0x068000", "0x010802", "0X030200", ""),
    "link_speed": ("32.0 GT/s", "Gen5", "Unknown", "Unknown speed", "16", "8 GT/s", "5.0 GT/s PCIe x", "64.0 gt/s", ""),
    "link_width": ("0", "1", "16", "63", "64", "65", "x8", ""),
    "device": ("0x2330", "0xc030", "0x74a1", "2330", ""),
    "count": ("0", "4", "18", "19", "x"),
    "target": ("0000:01:00.0", "0000:02:00.0", "0000:41:00.0", "fffffff:ffff:ff", "x"),
    "tclass": ("0x030200", "0x068000", "0x068001", ""),
    "version": ("1", "2", "1.0"),
    "name": ("mlx5_0", "eth0", ""),
}  # fmt: skip


def reworded(rng: random.Random) -> str:
    """Return a file with some values that others write, or nobody, and now and then an attribute less."""

    def other(match: re.Match[str]) -> str:
        if rng.random() > 0.08:
            return match[0]
        words = WORDS.get(match[1])
        return f'{match[1]}="{rng.choice(words)}"' if words and rng.random() < 0.9 else ""

    return _VALUE.sub(other, rng.choice(FILES))


def read(rng: random.Random) -> bool:
    return bool(nccl.read(fuzz.damaged(FILES, rng)).gpus)


def checked(rng: random.Random) -> bool:
    return not any(finding.error for finding in nccl.check(fuzz.damaged(FILES, rng)))


def written(rng: random.Random) -> bool:
    text = nccl.write(nccl.read(reworded(rng)))
    assert [finding for finding in nccl.check(text) if finding.error] == [], text
    return True


@pytest.mark.slow
@pytest.mark.parametrize("answer", [read, checked, written])
@pytest.mark.parametrize(
    "inputs", [INPUTS, pytest.param(MANY, marks=[pytest.mark.extended, pytest.mark.timeout(3600)])]
)
def test_any_file_has_an_answer(inputs: int, answer: Callable[[random.Random], bool]) -> None:
    rng, taken = random.Random(inputs), 0
    for _ in range(examples(inputs)):
        try:
            taken += answer(rng)
        except TopologyError as error:
            assert str(error)
    assert taken > examples(inputs) // 50, "too few are taken to say anything of the others"
