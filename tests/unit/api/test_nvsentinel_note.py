"""NVSentinel's annotation: the same text that its own metadata-collector would write."""

from __future__ import annotations

import pytest

from dradriver.api.base import names
from dradriver.api.claims.nvsentinel_note import with_devices


@pytest.mark.parametrize(
    ("allocated", "note"),
    [
        ("GPU-b,GPU-a", '{"devices":{"nvidia.com/gpu":["GPU-a","GPU-b"]}}'),
        ("GPU-a,GPU-a", '{"devices":{"nvidia.com/gpu":["GPU-a"]}}'),
        ("0123456789abcdef", None),
        (None, None),
    ],
)
def test_it_lists_each_gpu_of_nvidia_once_in_order(allocated: str | None, note: str | None) -> None:
    texts = {names.ALLOCATED: allocated, names.REASON: None}
    assert with_devices(texts) == {**texts, names.NVSENTINEL_DEVICES: note}


def test_what_says_nothing_of_gpus_stays_as_it_is() -> None:
    assert with_devices({names.REASON: "waits"}) == {names.REASON: "waits"}
