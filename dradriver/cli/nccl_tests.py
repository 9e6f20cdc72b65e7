"""What NVIDIA's nccl-tests print: a table of sizes with times and bandwidths, and a job that runs ``all_reduce_perf``.

The format is that of ``src/common.cu`` in nccl-tests: lines of ``#`` are comments, each other line is a size with two
results, out of place and in place, of time (us), algbw and busbw (GB/s) and the number of wrong values (``N/A`` where
they were not looked at). ``busbw`` is what ``gpu.topology/busbw`` predicts (nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.errors import DriverError

_COLUMNS: Final = 13
_BUSBW: Final = (7, 11)
_WRONG: Final = (8, 12)
_AVERAGE: Final = re.compile(r"#\s*Avg bus bandwidth\s*:\s*([0-9.]+)")
_BAD: Final = re.compile(r"#\s*Out of bounds values\s*:\s*\d+\s+FAILED")
_FAILED: Final = re.compile("Test (?:NCCL|CUDA) failure|NCCL error|Cuda failure", re.IGNORECASE)
_TOLD: Final = 4000  # bytes of 4096 that a container may leave behind
_LOG: Final = "/tmp/all_reduce_perf.log"  # noqa: S108 - the container's own
_KEEP_S: Final = 600


class NcclTestsError(DriverError):
    """The text is no result of nccl-tests, or of a run that failed."""

    reason = "NcclTestsFailed"


class Measured(msgspec.Struct, frozen=True):
    """What was measured.

    Attributes:
        size: The largest size, bytes.
        busbw_gbps: The better bus bandwidth at that size, GB/s.
        average_gbps: What nccl-tests calls the average over all sizes, which small ones pull down; None where not said.
        wrong: Whether values came out wrong.
    """

    size: int
    busbw_gbps: float
    average_gbps: float | None
    wrong: bool


def read(text: str) -> Measured:
    """Return what was measured by the table that one of nccl-tests' programs printed; its beginning may be missing.

    Raises:
        NcclTestsError: It has no table, or says that the run failed.
    """
    rows = [row for line in text.splitlines() if (row := _row(line)) is not None]
    if not rows or not _AVERAGE.search(text):  # a table that ends with its average is whole, whatever was warned of
        failed = next((line for line in text.splitlines() if _FAILED.search(line)), None)
        if failed is not None:
            raise NcclTestsError(f"nccl-tests failed: {failed.strip()[:300]}")
    if not rows:
        last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "nothing")
        raise NcclTestsError(f"nccl-tests printed no table of sizes; its last line is {last[:200]!r}")
    size, busbw, _ = max(rows, key=lambda row: row[0])
    average = _AVERAGE.search(text)
    wrong = any(row[2] for row in rows) or _BAD.search(text) is not None
    return Measured(size, busbw, float(average[1]) if average and number(average[1]) is not None else None, wrong)


def _row(line: str) -> tuple[int, float, bool] | None:
    """Return a line's size, its better bus bandwidth and whether values were wrong; None for any other line."""
    words = line.split()
    if len(words) != _COLUMNS or not words[0].isdecimal() or len(words[0]) > len(str(1 << 63)):
        return None
    found = [value for column in _BUSBW if (value := number(words[column])) is not None]
    if not found:
        return None
    return int(words[0]), max(found), any(words[column] not in ("0", "N/A") for column in _WRONG)


def number(text: str) -> float | None:
    """Return a number of 0 or more that nccl-tests printed; None if the text is no such number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def job(
    name: str, *, namespace: str, image: str, gpus: int, policy: str, node: str, most: str, deadline_s: int
) -> dict[str, Any]:
    """Return a Job that runs ``all_reduce_perf`` over the GPUs that its pod is given.

    What it prints at the end stands in the pod's status, so that nobody needs the right to read logs.

    Args:
        name: The Job's.
        namespace: Its namespace.
        image: An image with ``all_reduce_perf`` in its PATH, and a shell.
        gpus: How many GPUs.
        policy: Their ``gpu.topology/policy``.
        node: The node that it must be on; empty for any.
        most: The largest size, as nccl-tests takes it: ``8G``.
        deadline_s: After how many seconds it is ended.
    """
    command = (
        f"all_reduce_perf -b 8 -e {most} -f 2 -g {gpus} >{_LOG} 2>&1; status=$?; cat {_LOG}; "
        f"tail -c {_TOLD} {_LOG} >/dev/termination-log; exit $status"
    )
    container = {
        "name": "nccl-tests",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", command],
        "resources": {"requests": {"cpu": "1"}, "limits": {names.GPU_RESOURCE: str(gpus)}},
    }
    spec: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    if node:
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        spec["affinity"] = {"nodeAffinity": required}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": deadline_s,
            "ttlSecondsAfterFinished": _KEEP_S,
            "template": {"metadata": {"annotations": {names.POLICY: policy}}, "spec": spec},
        },
    }
