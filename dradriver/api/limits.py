"""Container limits that other drivers of the field gave a meaning: what they ask for, in our words.

=====================================================  =================================================================
``nvidia.com/gpu``                                     whole GPUs; beside an amount, the one that it is a share of
``nvidia.com/mig-<profile>``                           MIG slices (NVIDIA's device plugin; a ``+`` is written as ``.``)
``nvidia.com/gpumem``, ``nvidia.com/gpu-memory``       memory in MiB (HAMi)
``nvidia.com/gpucores``                                percent of a GPU's compute (HAMi)
``aliyun.com/gpu-mem``                                 memory in GiB; from 1024 on, which no GPU has, in MiB, for its
                                                       device plugin knows both (``--memory-unit``)
``aliyun.com/gpu-core``, ``…gpu-core.percentage``      percent of a GPU's compute
=====================================================  =================================================================

Memory from 1Mi on is bytes, whatever the unit (``10Gi``): no GPU has a tebibyte.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from dradriver.allocator.request import Amount
from dradriver.api import messages, names, quantity, values
from dradriver.api.errors import WordError
from dradriver.api.parts import Asked, described
from dradriver.api.values import MOST_GPUS

_MIG: Final = "nvidia.com/mig-"
_VGPU: Final = "nvidia.com/vgpu"
_MEMORY: Final = {"nvidia.com/gpumem": 1, "nvidia.com/gpu-memory": 1, "aliyun.com/gpu-mem": 1024}  # MiB a unit
_CORES: Final = ("nvidia.com/gpucores", "aliyun.com/gpu-core", "aliyun.com/gpu-core.percentage")
_NAMES: Final = frozenset((names.GPU_RESOURCE, *_MEMORY, *_CORES))
_BYTES: Final = 1 << 20  # from here on a memory's number is bytes
_GIB: Final = 1024  # up to here a number of GiB


def is_ours(resource: str) -> bool:
    """Return whether a resource is one of GPUs or parts of them that a claim takes the place of."""
    return resource in _NAMES or resource.startswith(_MIG)


def asked(where: str, limits: Mapping[str, object]) -> Asked:
    """Return what the limits ask for; 0 for nothing.

    Args:
        where: The place in words, for errors: ``container 'main': limits``.
        limits: All the container's limits, as text or numbers.

    Raises:
        WordError: A value that is none, limits that contradict each other, or vGPU.
    """
    found = {name: str(value) for name, value in limits.items() if is_ours(name) or name.startswith(_VGPU)}
    if not found:
        return 0
    for name, text in found.items():
        if name.startswith(_VGPU):
            raise WordError(
                f"{where} {name}: {messages.shown(text)}: vGPU is for virtual machines and needs NVIDIA's licence "
                f"server; write {names.SHARE}: 0.5 for a share of a GPU, or {names.MIG_PROFILE}: 1g.10gb for a slice"
            )
    gpus = _number(where, names.GPU_RESOURCE, found)
    profiles = _profiles(where, found)
    amount = _amount(where, found)
    if amount is None:
        if profiles and gpus:
            raise _contradiction(where, profiles, described(gpus))
        return profiles or gpus
    if profiles:
        raise _contradiction(where, profiles, described(amount))
    if gpus > 1:
        raise WordError(
            f"{where} {names.GPU_RESOURCE}: {gpus} contradicts {described(amount)}: a container's share is of one "
            f"GPU; write {names.GPU_RESOURCE}: 1, or leave it out"
        )
    return amount


def _contradiction(where: str, profiles: tuple[str, ...], other: str) -> WordError:
    return WordError(f"{where}: {described(profiles)} contradicts {other}; write one of the two")


def _amount(where: str, found: Mapping[str, str]) -> Amount | None:
    memory = {mib for name in _MEMORY if (mib := _memory_mib(where, name, found))}
    cores = {percent for name in _CORES if (percent := _number(where, name, found))}
    for several, kind in ((memory, "memory"), (cores, "compute")):
        if len(several) > 1:
            raise WordError(f"{where}: several limits on a GPU's {kind} contradict each other; write one of them")
    if not memory and not cores:
        return None
    percent = max(cores, default=0)
    if percent > 100:
        name = next(name for name in _CORES if name in found)
        raise messages.is_no(f"{where} {name}", found[name], messages.CORES)
    return Amount(percent, max(memory, default=0))


def _profiles(where: str, found: Mapping[str, str]) -> tuple[str, ...]:
    profiles: list[str] = []
    for name in sorted(name for name in found if name.startswith(_MIG)):
        written, gb, rest = name.removeprefix(_MIG).partition("gb")
        profile = values.mig_profile(written + gb + ("+" + rest[1:] if rest.startswith(".") else rest))
        if profile is None:
            raise messages.is_no(f"{where}", name, messages.MIG_RESOURCE)
        number = _number(where, name, found)
        if number + len(profiles) > MOST_GPUS:
            raise messages.is_no(f"{where} {name}", found[name], messages.GPUS)
        profiles += [profile] * number
    return tuple(profiles)


def _number(where: str, name: str, found: Mapping[str, str]) -> int:
    """Return the whole number that stands under a name, 0 where nothing does."""
    text = found.get(name, "0")
    if text.isascii() and text.isdigit() and len(text) <= 4:
        return int(text)
    value = _exact(text)
    if value is None or value.denominator != 1 or not 0 <= value <= 10**6:
        what = messages.CORES if name in _CORES else messages.GPUS
        raise messages.is_no(f"{where} {name}", text, what)
    return int(value)


def _memory_mib(where: str, name: str, found: Mapping[str, str]) -> int:
    text = found.get(name, "0")
    value = _exact(text)
    if value is None or value < 0:
        raise messages.is_no(f"{where} {name}", text, messages.MEMORY)
    mib = math.ceil(value / _BYTES if value >= _BYTES else value * (1 if value >= _GIB else _MEMORY[name]))
    if mib > values.MOST_MEMORY_MIB:
        raise messages.is_no(f"{where} {name}", text, messages.MEMORY)
    return mib


def _exact(text: str) -> Fraction | None:
    try:
        return quantity.exact(text)
    except WordError:
        return None
