"""What containers get in addition to their devices: variables, metadata files, NCCL's files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dradriver.api.base import names
from dradriver.api.base.dra_objects import AllocationResult, ResourceClaim
from dradriver.api.claims.opaque_config import ClaimConfig
from dradriver.api.slices import resource_slices
from dradriver.api.vocabulary.values import NCCL_AUTO, NEAR_NICS
from dradriver.node.claims import metadata, near_nics
from dradriver.node.claims.allocated_claim import choice_of, ring_of
from dradriver.node.claims.checkpoint import PreparedClaim
from dradriver.node.claims.metadata import Described
from dradriver.node.claims.nccl_settings import Nccl
from dradriver.node.container_edits import Edits, Mount
from dradriver.topology.machine import Gpu, Machine
from dradriver.topology.vendors import NVIDIA

logger = logging.getLogger(__name__)

# Else NVIDIA's container runtime, where it is the default one, adds every GPU of the machine.
_HIDE: Final = ("NVIDIA_VISIBLE_DEVICES", "void")
_ORDER: Final = "CUDA_DEVICE_ORDER"
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


class ClaimRequest(NamedTuple):
    """One request of a claim: its allocated devices, their GPUs, and its configuration."""

    results: tuple[AllocationResult, ...]
    gpus: tuple[Gpu, ...]
    config: ClaimConfig | None


class EnvAndFiles(NamedTuple):
    """What all containers of a request get: variables, mounts, and the contents of mounted files.

    ``files`` has the contents by file name, without device metadata files.
    """

    edits: Edits
    files: dict[str, bytes]


class ContainerEnv:
    """Makes the variables, and the contents of the files, that containers of a claim get."""

    def __init__(self, path: Callable[[str, str], str], nccl: Nccl) -> None:
        """Store the arguments; make nothing yet.

        Args:
            path: Returns the path on the host of a file for a claim, by the claim's uid and the file's name.
            nccl: Makes the NCCL settings.
        """
        self._path = path
        self._nccl = nccl
        self._attributes: tuple[Machine | None, dict[str, dict[str, Any]]] = (None, {})

    def env_and_files(
        self, claim: ResourceClaim, request: str, asked: ClaimRequest, machine: Machine, *, below: Machine | None
    ) -> EnvAndFiles:
        """Return the environment variables and files for the containers of a request.

        Args:
            claim: The claim.
            request: The request's name.
            asked: The request's allocated devices, their GPUs, and its configuration.
            machine: The machine as it is now.
            below: The physical server below a virtual machine; None if unknown or not virtual.

        Raises:
            ClaimError: A requested file cannot be written.
        """
        # Variables that the image or the pod sets, and that must not change.
        kept = set(asked.config.keep_env) if asked.config is not None else set()
        metadata_path = metadata.path(claim, request)
        # The device metadata file is mounted here, but written by the caller, who knows the prepared devices.
        mounts = [Mount(self._path(claim.metadata.uid, _file_name(request, metadata_path)), metadata_path)]
        files: dict[str, bytes] = {}
        # Which of NCCL's settings are requested, and the request's GPUs by their position in the machine.
        mode = asked.config.nccl if asked.config is not None else NCCL_AUTO
        positions = sorted({machine.gpus.index(gpu) for gpu in asked.gpus})
        env: list[str] = []

        # Containers of other vendors have no CUDA, and NCCL's files are for NVIDIA's GPUs only.
        if machine.vendor is NVIDIA:
            nccl = self._nccl.settings(mode, machine, positions, below=below, keep_env=kept)
            for path, data in nccl.files.items():
                name = _file_name(request, path)  # on the host; ``path`` is in the container
                files[name] = data
                mounts.append(Mount(self._path(claim.metadata.uid, name), path))
            env += [*_cuda_env(request, asked.gpus, asked.config, kept), *nccl.env]
        # For AMD, too: RCCL reads the same variable (``NCCL_IB_HCA``). If a vendor's library does not read it,
        # ``_near_nics`` returns no variable.
        if mode == NEAR_NICS and near_nics.VARIABLE not in kept:
            env += self._near_nics(claim, machine, positions, below)
        return EnvAndFiles(Edits(env=tuple(env), mounts=tuple(mounts)), files)

    def _near_nics(
        self, claim: ResourceClaim, machine: Machine, positions: Sequence[int], below: Machine | None
    ) -> list[str]:
        """Return the variable that names the network cards near a container's GPUs.

        The result is a list of one text, ``NAME=value``. If the variable cannot be set, the list is empty, and an Event
        tells the pod's owner why.

        Args:
            claim: The claim, for the Event.
            machine: The machine as it is now.
            positions: Positions of the container's GPUs in ``machine.gpus``.
            below: The physical server below a virtual machine; None if unknown or not virtual.
        """
        assert claim.status.allocation is not None, "it has results"
        theirs = sorted({one.driver for one in claim.status.allocation.devices.results} - {names.DRIVER})
        if theirs:  # it may have the pod's cards, whose names its driver gives
            variable, why = "", f"the claim has devices of {', '.join(theirs)} too"
        else:
            variable, why = self._nccl.nics(machine, positions, below=below)
        if not variable:
            self._nccl.not_told(claim, f"{near_nics.VARIABLE} is not set in the containers, because {why}.")
        return [variable] if variable else []

    def about(self, claim: ResourceClaim, done: PreparedClaim, machine: Machine) -> dict[str, bytes]:
        """Return the device metadata files that ``env_and_files`` mounts for each request, by file name.

        Args:
            claim: The claim.
            done: The prepared claim; the attributes of MIG instances and shares are known only after they were made.
            machine: The machine as it is now.
        """
        # The order of the GPUs in the best ring, the controller's choice, and each device's attributes in its slice.
        ring = [resource_slices.device_name(uuid) for uuid in ring_of(claim)]
        choice, attributes = choice_of(claim), self._of(machine)
        by_request: dict[str, list[Described]] = {}
        for result, device in zip(claim.results, done.devices, strict=True):
            device_attributes = attributes.get(resource_slices.device_name(device.uuid), {})
            # Only a part (MIG instance, share) has such facts, which are known once it is made.
            if device.told:
                device_attributes = resource_slices.of_part(device_attributes, device.told)
            by_request.setdefault(device.request, []).append(Described(result, device_attributes))
        return {
            _file_name(request, metadata.path(claim, request)): metadata.build(claim, some, choice, ring)
            for request, some in by_request.items()
        }

    def _of(self, machine: Machine) -> Mapping[str, Mapping[str, Any]]:
        if self._attributes[0] is not machine:
            self._attributes = (machine, resource_slices.attributes(machine))
        return self._attributes[1]


def _file_name(request: str, path: str) -> str:
    return f"{request}-{path.rpartition('/')[2]}"


def _cuda_env(request: str, gpus: Sequence[Gpu], settings: ClaimConfig | None, kept: set[str]) -> tuple[str, ...]:
    env = {} if _HIDE[0] in kept else {_HIDE[0]: _HIDE[1]}
    order = settings.order.get(request) if settings is not None else None
    if order and not kept & {_ORDER, _VISIBLE}:
        env |= _rank_order(order, gpus)
    return tuple(f"{key}={value}" for key, value in env.items())


def _rank_order(order: Sequence[str], gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return the variables that make CUDA number a container's GPUs in the order ``order``.

    The claim's configuration requests the order. The variables name the GPUs by their numbers in the container
    (``CUDA_VISIBLE_DEVICES=2,0,1``). Uuids would crash programs that read these values as integers. The result is empty
    if CUDA numbers the GPUs in this order anyway.

    Args:
        order: The uuids of the GPUs, the first GPU of CUDA first.
        gpus: The same GPUs in any order. If they are not the GPUs of ``order``, the result is empty, too.
    """
    by_pci = [gpu.uuid for gpu in sorted(gpus, key=lambda gpu: gpu.pci)]
    if sorted(order) != sorted(by_pci):
        logger.warning(
            "The order in a claim's configuration names other GPUs than the claim's allocation. The order is ignored."
        )
        return {}
    if list(order) == by_pci:
        return {}
    return {_ORDER: "PCI_BUS_ID", _VISIBLE: ",".join(str(by_pci.index(uuid)) for uuid in order)}
