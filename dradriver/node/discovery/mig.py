"""A GPU's MIG mode and the MIG devices that exist on it."""

from __future__ import annotations

from dradriver.node.discovery.nvml import INVALID_ARGUMENT, NOT_FOUND, Handle, Nvml
from dradriver.node.discovery.questions import NEWER, Questions
from dradriver.topology.check import is_mig_uuid
from dradriver.topology.machine import MigDevice


def read(nvml: Nvml, gpu: Handle, asked: Questions) -> tuple[MigDevice, ...] | None:
    """Return the MIG devices by slot; None where MIG mode is off or the product has none."""
    now, wanted = asked.ask(nvml.mig_mode, gpu, default=(False, False), quiet=NEWER)
    if now != wanted:
        asked.note("MIG mode", f"goes {'on' if wanted else 'off'} at the GPU's next reset")
    if not now:
        return None
    slots = asked.ask(nvml.mig_slots, gpu, default=0)
    empty = frozenset({NOT_FOUND, INVALID_ARGUMENT})
    found = []
    for slot in range(slots):
        at = f"MIG {slot}"
        device = asked.ask(nvml.mig_device, gpu, slot, default=None, quiet=empty, at=at)
        if device is None:
            continue
        ids = asked.ask(nvml.mig_ids, device, default=None, quiet=frozenset(), at=at)
        uuid = asked.ask(nvml.uuid, device, default="", quiet=frozenset(), at=at)
        if ids is None or not uuid:
            continue
        if not is_mig_uuid(uuid):
            asked.note("nvmlDeviceGetUUID", f"{uuid!r} is no MIG device's uuid", at=at)
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
