"""A node whose GPUs are cut into MIG instances for claims, and how claims ask for these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from dradriver.api.base import names
from dradriver.api.slices import resource_slices
from dradriver.node.claims.checkpoint import PreparedClaim
from dradriver.node.container_edits import DeviceNode, Edits
from dradriver.node.devices.hardware_journal import HardwareJournal, Made
from dradriver.node.devices.part_records import MigInstance
from dradriver.node.mps.mps_files import MpsFolder
from dradriver.node.vendors.nvidia.devices import nvidia_hardware
from dradriver.node.vendors.nvidia.devices.capabilities import SimulatedCapabilities
from dradriver.node.vendors.nvidia.devices.mps_and_time_slicing import Sharing
from dradriver.node.vendors.nvidia.devices.simulated_control import SimulatedGpu
from dradriver.topology.machine import Gpu, Machine
from dradriver.topology.profiles import simulated_mig_profiles
from tests.fakes.node import claim, device, edits, parameters, result, uuid
from tests.fakes.node import machine as plain
from tests.fakes.parts import PRODUCT, PROFILES
from tests.fakes.preparing import World

BY_ID = {profile.id: profile.name for profile in PROFILES.values()}
QUARTER: dict[str, Any] = {"consumedCapacity": {"cores": "25", "memory": "10Gi"}}
COMMON = Edits(cdi=("gpu.topology/gpu=driver",))


class Sliced(World):
    """A world whose GPUs are H100s, but GPU 6 has no MIG, and GPU 7 is an A100 in MIG mode."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.products = dict.fromkeys(range(6), (PRODUCT, "9.0"))
        self.products |= {6: ("NVIDIA L40S", "8.9"), 7: ("NVIDIA A100-SXM4-40GB", "8.0")}
        self.set({7})
        self.gpus = SimulatedGpu(folder / "hardware.json", self.gpu)
        self.static: set[str] = set()  # GPUs on which no instance is made for claims
        self.asked_of: list[str] = []  # GPUs of which it was asked
        with self.gpus.state(uuid(7)) as state:
            state.mig = True
        self.device_manager = self.kinds(self.gpus)

    def kinds(self, control: SimulatedGpu) -> Any:
        self.switched = 0

        def switched() -> None:
            self.switched += 1

        return nvidia_hardware.of(
            edits,
            nvidia_hardware.Host(
                control,
                SimulatedCapabilities(),
                parent=lambda minor: DeviceNode(f"/dev/nvidia{minor}", "/dev/null"),
                common=lambda: COMMON,
            ),
            mps=MpsFolder(self.folder / "mps", boot=self.boot),
            sharing=lambda _: Sharing(),
            made=self.makes,
            switched=switched,
        )

    def makes(self, gpu: str) -> bool:
        self.asked_of.append(gpu)
        return gpu not in self.static

    def set(self, in_mig_mode: set[int]) -> None:
        """Read the machine anew, with these GPUs in MIG mode."""
        self.machine: Machine = msgspec.structs.replace(
            plain(),
            gpus=tuple(
                msgspec.structs.replace(
                    gpu,
                    product=self.products[gpu.index][0],
                    compute_capability=self.products[gpu.index][1],
                    profiles=simulated_mig_profiles.profiles(self.products[gpu.index][0]),
                    mig=() if gpu.index in in_mig_mode else None,
                )
                for gpu in plain().gpus
            ),
        )

    def gpu(self, identity: str) -> Gpu | None:
        return next((gpu for gpu in self.machine.gpus if gpu.uuid == identity), None)

    async def prepare(self, name: str, *results: Any, config: Any = ()) -> PreparedClaim:
        preparer = self.preparer()
        preparer._budget_s = 0.0
        return await preparer.prepare(*self.put(claim(name, results=list(results), config=config)))

    def placed(self, gpu: int) -> list[tuple[str, int]]:
        return sorted((BY_ID[one.profile], one.start) for one in self.gpus.gpu_instances(uuid(gpu)).values())

    @property
    def made(self) -> dict[str, Made]:
        return {k: entry.value for k, entry in HardwareJournal(self.folder / "state" / "made").read().items()}

    def instance(self, key: str) -> MigInstance:
        """What was made, by the key of its entry."""
        done = self.made[key].done
        assert isinstance(done, MigInstance)
        return done


def at(gpu: int, profile: str, start: int, request: str = "gpu") -> Any:
    """A result of a published placement."""
    return result(request, resource_slices.part_name(uuid(gpu), PROFILES[profile].id, start))


def some(gpu: int, memory: int, compute: int, share: str, request: str = "gpu") -> Any:
    """A result of slices of a GPU whose instances are made on demand."""
    consumed = {names.CAPACITY_MEMORY_SLICES: str(memory), names.CAPACITY_COMPUTE_SLICES: str(compute)}
    return result(request, device(gpu), shareID=share, consumedCapacity=consumed)


def pin(profile: str, starts: dict[int, int] | None = None, request: str = "gpu") -> Any:
    own = {"starts": {uuid(gpu): start for gpu, start in starts.items()}} if starts else {}
    return parameters(mig={request: {"profile": profile} | own})
