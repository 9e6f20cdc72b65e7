"""The demo's table of what its pods got."""

from __future__ import annotations

from dradriver.allocator.request import Whole
from dradriver.api.base import names
from dradriver.api.pod import resolved
from dradriver.api.pod.resolved import Resolved
from tests.demo.online import rows_of
from tests.demo.table import render


def test_a_pod_that_waits_has_a_row_with_its_reason() -> None:
    note = resolved.write(Resolved(containers=("a", "b"), request=Whole(containers=(2, 1))))
    pod = {
        "metadata": {
            "name": "late",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {names.REQUEST: note, names.REASON: "Waiting for 3 GPUs"},
        },
        "spec": {},
        "status": {},
    }
    (row,) = rows_of([pod], [], {"node-a": "dgx1-v100"})
    assert row.got is None
    assert row.plain is not None
    assert len(row.plain.gpus) == 3
    shown = render([row])
    assert "waits: Waiting for 3 GPUs" in shown
    assert "A row can look better under DRA ALONE: " in shown
