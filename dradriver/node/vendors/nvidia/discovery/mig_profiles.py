"""Finds the MIG instances that a GPU can have, by NVML queries of ``nvidia-ml-py``.

NVML lists the profiles by numbers of an enumeration. All further queries use the profile's own id. The profiles are
known even if MIG mode is off, and stay the same as long as the mode lasts (nvml.h,
nvmlDeviceGetGpuInstanceProfileInfo).

A placement is a position on the GPU at which an instance of a profile can be made.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Callable
from typing import Any, Final

from dradriver.node.vendors.nvidia.discovery.nvml_calls import NvmlCalls
from dradriver.node.vendors.nvidia.discovery.nvml_interface import INVALID_ARGUMENT, NOT_SUPPORTED, UNKNOWN, NvmlError
from dradriver.topology.check import MOST_OF_AN_ENGINE, MOST_PROFILES, check_profile
from dradriver.topology.errors import TopologyError
from dradriver.topology.identifiers import is_mig_profile
from dradriver.topology.machine import MigProfile

logger = logging.getLogger(__name__)

_MOST_NUMBERS: Final = 64  # of the enumeration
_MOST_PLACEMENTS: Final = 64
_ENGINES: Final = ("copyEngineCount", "decoderCount", "encoderCount", "jpegCount", "ofaCount")
"""Fields of nvmlGpuInstanceProfileInfo_v2_t, in the order of ``mig_limits.ENGINES``."""
_PLACEMENTS: Final = "nvmlDeviceGetGpuInstancePossiblePlacements"

Ask = Callable[..., Any]
"""Returns what a function of the binding returns, by its name and arguments; raises ``NvmlError``."""


def read(calls: NvmlCalls, gpu: object, infos: list[Any]) -> tuple[MigProfile, ...]:
    """Return the MIG profiles that have a placement on a GPU, the smallest first.

    The result is empty if the product has no MIG. These profiles are left out and logged:

    - A profile with a name of an unknown form. In newer drivers the name may mean more than a size.
    - A profile with the same name as another profile, because claims request profiles by name.
    - Profiles beyond ``MOST_PROFILES``.

    Args:
        calls: Asks the library.
        gpu: The GPU's handle.
        infos: NVML's records of the profiles, from the function ``infos``.

    Raises:
        NvmlError: A question failed, or an answer has an impossible number.
    """
    by_name: dict[str, MigProfile] = {}
    for info in infos:
        profile = _profile(calls, gpu, info)
        if profile is None:
            continue
        if profile.name in by_name:
            _tell(profile.id, f"profile {by_name[profile.name].id} is {profile.name!r}, too")
        elif len(by_name) == MOST_PROFILES:
            _tell(profile.id, f"the GPU has more than {MOST_PROFILES}")
        else:
            by_name[profile.name] = profile
    return tuple(sorted(by_name.values(), key=lambda profile: (profile.compute, profile.size, profile.name)))


def infos(calls: NvmlCalls, gpu: object) -> list[Any]:
    """Return NVML's record of each MIG profile of a GPU, even without a placement."""
    known = calls.module.NVML_GPU_INSTANCE_PROFILE_COUNT
    return enumerated(calls.ask, "nvmlDeviceGetGpuInstanceProfileInfoV", known, gpu)


def enumerated(ask: Ask, query: str, known: int, subject: object, *further_arguments: object) -> list[Any]:
    """Return NVML's answers to a question for each number of an enumeration, for example for each MIG profile.

    For a number without an answer NVML reports "not supported" or "invalid argument" (go-nvlib, VisitMigProfiles). A
    newer library may have more numbers than ``known``. So the enumeration ends at the first "invalid argument" at or
    after ``known``.

    Args:
        ask: Asks the library.
        query: The question.
        known: Number of values that ``nvidia-ml-py`` knows.
        subject: The object of the question.
        further_arguments: The question's further arguments.

    Raises:
        NvmlError: The question failed. This includes that every number is an invalid argument: then another argument is
            invalid.
    """
    answers: list[Any] = []
    unsupported = 0
    for number in range(_MOST_NUMBERS):
        try:
            answers.append(ask(query, subject, number, *further_arguments))
        except NvmlError as error:
            if error.code not in (INVALID_ARGUMENT, NOT_SUPPORTED):
                raise
            # A number that the library does not know is "invalid argument"; one without an answer "not supported".
            unsupported += error.code == NOT_SUPPORTED
            if error.code == INVALID_ARGUMENT and number >= known:
                if not answers and not unsupported:
                    raise
                break
    return answers


def listed(ask: Ask, query: str, form: Any, most: int, of: object, profile: int) -> list[Any]:
    """Return the structures that a function of NVML fills in for a MIG profile.

    Args:
        ask: Asks the library.
        query: The name of the function.
        form: The ctypes class of the structures.
        most: The largest number of structures.
        of: Handle of the GPU or GPU instance.
        profile: Id of the profile.
    """
    structures, count = (form * max(1, most))(), ctypes.c_uint(most)
    ask(query, of, profile, structures, ctypes.byref(count))
    return list(structures[: min(count.value, most)])


def _profile(calls: NvmlCalls, gpu: object, info: Any) -> MigProfile | None:
    """Return a profile with its placements; None if it has no placement on the GPU.

    The result is also None if the name of the profile has an unknown form.
    """
    form = calls.module.c_nvmlGpuInstancePlacement_t
    # 1. The placements: first memory slice and size of each. A profile has one size.
    try:
        placements = listed(calls.ask, _PLACEMENTS, form, _MOST_PLACEMENTS, gpu, info.id)
    except NvmlError as error:
        if error.code != NOT_SUPPORTED:
            raise
        return None
    sizes = {int(placement.size) for placement in placements}
    if not sizes:
        return None
    if len(sizes) > 1:
        raise NvmlError(_PLACEMENTS, UNKNOWN, f"profile {info.id} has placements of sizes {sorted(sizes)}")

    # 2. The name, ``1g.10gb``, which NVML writes with a prefix.
    name = str(info.name).removeprefix("MIG ")
    if not is_mig_profile(name):
        _tell(int(info.id), f"its name, {name!r}, is of no form that this version knows")
        return None

    # 3. The profile. Numbers that cannot be are the library's error, not a reason to publish them.
    profile = MigProfile(
        id=int(info.id),
        name=name,
        compute=int(info.sliceCount),
        memory_mib=int(info.memorySizeMB),
        most=int(info.instanceCount),
        starts=tuple(sorted({int(placement.start) for placement in placements})),
        size=sizes.pop(),
        engines=_engines(info),
    )
    try:
        check_profile(profile, f"profile {profile.id}")
    except TopologyError as error:
        raise NvmlError(_PLACEMENTS, UNKNOWN, str(error)) from error
    return profile


def _engines(info: Any) -> tuple[int, ...]:
    """Return how many engines of each kind an instance has; empty if NVML does not say.

    A number that no GPU can have counts as 0.
    """
    counts = tuple(int(getattr(info, field, 0)) for field in _ENGINES)
    possible = tuple(count if count <= MOST_OF_AN_ENGINE else 0 for count in counts)
    return possible if any(possible) else ()


@functools.lru_cache(maxsize=_MOST_NUMBERS)  # once for all GPUs, and not at every question
def _tell(profile: int, why: str) -> None:
    logger.warning("MIG profile %d is not offered: %s", profile, why)
