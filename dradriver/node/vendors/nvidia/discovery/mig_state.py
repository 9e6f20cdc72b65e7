"""The MIG state of a GPU by NVML: its mode, the profiles of its instances, and the devices that exist."""

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
    """What is known of one GPU's MIG mode, profiles and devices.

    Attributes:
        devices: The MIG devices by slot; None where MIG mode is off or the product has none.
        profiles: Those that its instances can have; empty where the product has no MIG, or never told.
    """

    devices: tuple[MigDevice, ...] | None
    profiles: tuple[MigProfile, ...]


def mode(nvml: Nvml, gpu: Handle, query: NvmlQuery) -> bool:
    """Return from a GPU's MIG state whether MIG mode is on. The GPU's other facts hold while that stays so."""
    now, wanted = query.ask(nvml.mig_mode, gpu, default=(False, False), quiet=NEWER)
    query.hold_while(now)
    if now != wanted:
        query.note("MIG mode", f"goes {'on' if wanted else 'off'} at the GPU's next reset")
    return now


def read(nvml: Nvml, gpu: Handle, query: NvmlQuery, *, on: bool) -> Mig:
    """Return a GPU's MIG mode, profiles and devices by NVML; instances that cannot be given are noted.

    Profiles are a fact: NVML's answer holds for as long as the mode lasts. A GPU that does not tell them is as good a
    whole one as any.

    Args:
        nvml: The open library.
        gpu: Whom to ask.
        query: The questions about it.
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
            query.note("MIG device", f"left out; {said}", at=f"MIG {device.slot}")
    return Mig(devices, profiles)


def _devices(nvml: Nvml, gpu: Handle, query: NvmlQuery) -> tuple[MigDevice, ...]:
    """Return the MIG devices of a GPU, from the slots that are not empty."""
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
