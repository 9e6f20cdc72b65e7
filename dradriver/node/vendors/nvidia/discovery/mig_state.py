"""The MIG state of a GPU by NVML: its mode, the profiles of possible instances, and the devices that exist.

A slot is NVML's number of a MIG device on its GPU.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from dradriver.api.slices import mig_devices
from dradriver.node.vendors.nvidia.discovery.failed_queries import NEWER, NvmlQuery
from dradriver.node.vendors.nvidia.discovery.nvml_interface import INVALID_ARGUMENT, NOT_FOUND, Handle, Nvml
from dradriver.topology.identifiers import is_mig_uuid
from dradriver.topology.machine import MigDevice, MigProfile

_NO_PROFILES: Final[tuple[MigProfile, ...]] = ()
_UNPLACED: Final[tuple[int | None, int | None]] = (None, None)


class Mig(NamedTuple):
    """The MIG mode, profiles and devices of one GPU.

    Attributes:
        devices: The MIG devices by slot; None if MIG mode is off or the product has no MIG.
        profiles: The profiles of possible instances; empty if the product has no MIG, or NVML never answered.
    """

    devices: tuple[MigDevice, ...] | None
    profiles: tuple[MigProfile, ...]


def mode(nvml: Nvml, gpu: Handle, query: NvmlQuery) -> bool:
    """Return whether MIG mode of a GPU is on.

    If the mode has changed since the last reading, the stored answers about the GPU are forgotten: they hold for one
    mode only. A change that waits for a reset is noted as a problem.
    """
    now, wanted = query.ask(nvml.mig_mode, gpu, default=(False, False), quiet=NEWER)
    query.hold_while(now)
    if now != wanted:
        query.note("MIG mode", f"goes {'on' if wanted else 'off'} at the GPU's next reset")
    return now


def read(nvml: Nvml, gpu: Handle, query: NvmlQuery, *, on: bool) -> Mig:
    """Return a GPU's MIG devices and profiles by NVML; note unusable instances as problems.

    An instance is unusable if no container can get it. NVML is asked for the profiles only once while the MIG mode
    lasts, because they stay the same. A GPU without known profiles can still be given to a container as a whole.

    Args:
        nvml: The open library.
        gpu: The GPU's handle.
        query: Asks about this GPU.
        on: Whether MIG mode is on.
    """
    profiles = query.ask_once(nvml.mig_profiles, gpu, on, default=_NO_PROFILES, quiet=NEWER, needed=False)
    if not on:
        return Mig(None, profiles)
    devices = _devices(nvml, gpu, query)
    handed_out = {device.slot for device, _ in mig_devices.existing(devices, profiles)}
    for device in devices:
        if device.slot not in handed_out:
            said = f"its GPU instance {device.gpu_instance} is not one compute instance of a profile that is known"
            query.note("MIG device", f"the GPU is left out: {said}", at=f"MIG {device.slot}")
    return Mig(devices, profiles)


def _devices(nvml: Nvml, gpu: Handle, query: NvmlQuery) -> tuple[MigDevice, ...]:
    """Return the MIG devices of a GPU; NVML's slots for them may be empty."""
    # ``ask`` returns ``default`` if NVML fails; codes in ``quiet`` are no failure. A slot may be empty.
    empty = frozenset({NOT_FOUND, INVALID_ARGUMENT})
    devices = []
    for slot in range(query.ask_once(nvml.mig_slots, gpu, default=0)):
        at = f"MIG {slot}"
        device = query.ask(nvml.mig_device, gpu, slot, default=None, quiet=empty, at=at)
        if device is None:
            continue
        ids = query.ask(nvml.mig_ids, device, default=None, quiet=frozenset(), at=at)
        uuid = query.ask(nvml.uuid, device, default="", quiet=frozenset(), at=at)
        if ids is None or not uuid:
            continue
        gpu_instance, compute_instance = ids
        if not is_mig_uuid(uuid):
            query.note("nvmlDeviceGetUUID", f"{uuid!r} is no MIG device's uuid", at=at)
            continue
        product = query.ask(nvml.product, device, default="", at=at)

        # The product's name ends in the profile's: ``NVIDIA H100 MIG 1g.10gb``.
        profile_id, start = query.ask(
            nvml.mig_placement, gpu, gpu_instance, default=_UNPLACED, quiet=NEWER, at=f"{at} {uuid}"
        )
        devices.append(
            MigDevice(
                slot=slot,
                uuid=uuid,
                gpu_instance=gpu_instance,
                compute_instance=compute_instance,
                profile=product.rpartition(" MIG ")[2] if " MIG " in product else "",
                memory_mib=query.ask(nvml.memory_mib, device, default=0, at=at),
                profile_id=profile_id,
                start=start,
            )
        )
    return tuple(devices)
