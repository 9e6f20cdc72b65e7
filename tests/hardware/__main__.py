"""Compares discovery with ``nvidia-smi topo -m`` on this machine: ``python -m tests.hardware``."""

from __future__ import annotations

import subprocess
import sys
import time

from dradriver.errors import DriverError
from dradriver.node.vendors.nvidia.discovery import nvidia_reading as discovery
from dradriver.topology import machine_codec, topo_m
from tests.hardware.differences import differences


def main() -> int:
    """Print what was read, how long it took and every difference; return 1 where there is one."""
    try:
        start = time.perf_counter()
        reading = discovery.read()
        seconds = time.perf_counter() - start
        tool = ["nvidia-smi", "topo", "-m"]
        text = subprocess.run(tool, capture_output=True, text=True, check=True, timeout=60).stdout
        said = topo_m.read(text)
    except (DriverError, OSError, subprocess.SubprocessError) as error:
        print(f"nothing to compare here: {error}", file=sys.stderr)
        return 1
    print(text)
    print(topo_m.write(reading.machine))
    print(machine_codec.encode(reading.machine))
    print(*(f"problem: {problem}" for problem in reading.problems), sep="\n")
    found = differences(reading.machine, said)
    print(*(f"difference: {one}" for one in found), sep="\n")
    print(f"{len(reading.machine.gpus)} GPUs, {len(reading.machine.nics)} NICs, read in {seconds * 1000:.0f} ms, "
          f"{len(found)} differences")  # fmt: skip
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
