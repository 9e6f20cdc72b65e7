"""The annotation by which NVSentinel's node-drainer finds the pods that use a faulty GPU.

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
    """Return annotations of a placed pod, with the one for NVSentinel's node-drainer added.

    The annotation is added only if ``texts`` name the pod's GPUs. A fraction counts as its whole GPU, because
    NVSentinel resets whole GPUs. Only GPUs of NVIDIA are named.

    Args:
        texts: The annotations to write, by name; a value of None removes an annotation.
    """
    if names.ALLOCATED not in texts:
        return dict(texts)
    uuids = sorted({uuid for uuid in (texts[names.ALLOCATED] or "").split(",") if uuid.startswith(_NVIDIA)})
    note = msgspec.json.encode({"devices": {names.GPU_RESOURCE: uuids}}).decode() if uuids else None
    return {**texts, names.NVSENTINEL_DEVICES: note}
