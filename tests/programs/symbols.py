"""What NVIDIA's binding for Go, as a release of the toolkit has it, asks of NVML and the tests' library does not have.

Usage: python -m tests.programs.symbols > tests/programs/symbols.txt
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests import needs
from tests.cluster.settings import NVIDIA_TOOLKITS
from tests.fakes import nvml

FILE = Path(__file__).with_suffix(".txt")


def missing() -> list[str]:
    """Return the functions that some release's programs are linked to, and that the library lacks, by name."""
    asked = {name for version in NVIDIA_TOOLKITS for name in _names(needs.nvidia_toolkit(version) / "nvidia-ctk", "U")}
    return sorted(asked - _names(nvml.compiled() / "usr/lib64/libnvidia-ml.so.1", "T"))


def _names(file: Path, kind: str) -> set[str]:
    said = subprocess.run(["nm", "--dynamic", str(file)], capture_output=True, text=True, check=True, timeout=60).stdout
    return set(re.findall(rf"^[0-9a-f ]+ {kind} (nvml\w+)$", said, re.MULTILINE))


if __name__ == "__main__":
    sys.stdout.write("\n".join((*missing(), "")))
