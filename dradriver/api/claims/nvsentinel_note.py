"""The annotation by which NVSentinel's node-drainer knows whose pods a faulty GPU concerns.

Format: ``{"devices":{"nvidia.com/gpu":["GPU-<uuid>", ...]}}``, sorted, each GPU once. Source: NVIDIA/NVSentinel,
``data-models/pkg/model`` (DeviceAnnotation) and ``metadata-collector/pkg/mapper``, September 2026; issue 1865.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dradriver.api.base import names

_NVIDIA: Final = "GPU-"  # what NVIDIA's UUIDs of GPUs begin with


def with_devices(texts: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the annotations that a placed pod gets, with NVSentinel's if they say which GPUs the pod has.

    A fraction of a GPU counts as its GPU, which is what NVSentinel resets. GPUs of other vendors are not named.

    Args:
        texts: The annotations that are written; None for those that are removed.
    """
    if names.ALLOCATED not in texts:
        return dict(texts)
    uuids = sorted({uuid for uuid in (texts[names.ALLOCATED] or "").split(",") if uuid.startswith(_NVIDIA)})
    note = msgspec.json.encode({"devices": {names.GPU_RESOURCE: uuids}}).decode() if uuids else None
    return {**texts, names.NVSENTINEL_DEVICES: note}
