"""A GPU's MIG mode and the MIG devices that exist on it."""

from __future__ import annotations

import msgspec

from dradriver.node.discovery.nvml import INVALID_ARGUMENT, NOT_FOUND, Handle, Nvml
from dradriver.node.discovery.questions import NEWER, Questions

_MOST_SLOTS = 64  # far above any part


class MigDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One MIG device.

    Attributes:
        slot: Its number on the GPU, as in ``nvidia-smi -L``.
        uuid: ``MIG-`` and a lower-case UUID.
        gpu_instance: Number of its GPU instance.
        compute_instance: Number of its compute instance in there.
        profile: ``1g.10gb``; empty where the name does not say.
        memory_mib: Its memory in MiB.
    """

    slot: int
    uuid: str
    gpu_instance: int
    compute_instance: int
    profile: str
    memory_mib: int


def read(nvml: Nvml, gpu: Handle, asked: Questions) -> tuple[MigDevice, ...] | None:
    """Return the MIG devices by slot; None where MIG mode is off or the product has none."""
    if not asked.ask(nvml.mig_mode, gpu, default=False, quiet=NEWER):
        return None
    slots = asked.ask(nvml.mig_slots, gpu, default=0)
    empty = frozenset({NOT_FOUND, INVALID_ARGUMENT})
    found = []
    for slot in range(min(slots, _MOST_SLOTS)):
        at = f"MIG {slot}"
        device = asked.ask(nvml.mig_device, gpu, slot, default=None, quiet=empty, at=at)
        if device is None:
            continue
        ids = asked.ask(nvml.mig_ids, device, default=None, quiet=frozenset(), at=at)
        uuid = asked.ask(nvml.uuid, device, default="", quiet=frozenset(), at=at)
        if ids is None or not uuid:
            continue
        product = asked.ask(nvml.product, device, default="", at=at)
        found.append(
            MigDevice(
                slot=slot,
                uuid=uuid,
                gpu_instance=ids[0],
                compute_instance=ids[1],
                profile=product.rpartition(" MIG ")[2] if " MIG " in product else "",
                memory_mib=asked.ask(nvml.memory_mib, device, default=0, at=at),
            )
        )
    return tuple(found)
