"""Whose GPUs a machine has, and what follows from it for who asks for them, places them and prepares them.

One vendor a machine, and one a pod. What reads and prepares a vendor's GPUs has a room in ``dradriver/node/vendors``.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Vendor(msgspec.Struct, frozen=True, kw_only=True):
    """One maker of GPUs.

    Attributes:
        word: What stands in ``Gpu.vendor``.
        link: What its direct links are called.
        cell: The same before their number in a matrix: ``NV4``.
        library: The collective library that its jobs bring.
        predicted: Whether the all-reduce bandwidth of sets can be predicted. The model here is NCCL's; RCCL and HCCL
            search otherwise, and a figure of theirs would be invented.
        rated: Whether what one link carries is published.
        device_class: The DeviceClass that its whole GPUs are asked for by.
        resources: Extended resources that ask for whole GPUs of it, as limits, and by which its device plugins hand
            them out; first the one of any product.
        parts: Whether there are shares and slices of its GPUs.
        hides: Variables that choose among a container's GPUs, by which a pod's author may hide some.
        injects: Variables by which the vendor's own container runtime adds devices, beside what a claim gives.
    """

    word: str
    link: str
    cell: str
    library: str
    predicted: bool = False
    rated: bool = True
    device_class: str
    resources: tuple[str, ...]
    parts: bool = False
    hides: tuple[str, ...]
    injects: tuple[str, ...]

    @property
    def type(self) -> str:
        """What the attribute ``type`` of its whole GPUs says: ``gpu`` is NVIDIA's alone.

        DeviceClasses of releases that knew no vendor select that, and after a rollback they are back.
        """
        return "gpu" if self.word == "nvidia" else f"{self.word}-gpu"


NVIDIA: Final = Vendor(
    word="nvidia",
    link="NVLink",
    cell="NV",
    library="NCCL",
    predicted=True,
    device_class="gpu.topology",
    resources=("nvidia.com/gpu",),
    parts=True,
    hides=("CUDA_VISIBLE_DEVICES",),
    injects=("NVIDIA_VISIBLE_DEVICES",),
)
AMD: Final = Vendor(
    word="amd",
    link="xGMI",
    cell="XGMI",
    library="RCCL",
    device_class="amd.gpu.topology",
    resources=("amd.com/gpu",),
    hides=("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    injects=("AMD_VISIBLE_DEVICES",),
)
ASCEND: Final = Vendor(
    word="ascend",
    link="HCCS",
    cell="HCCS",
    library="HCCL",
    rated=False,
    device_class="ascend.gpu.topology",
    resources=("huawei.com/npu", "huawei.com/Ascend910", "huawei.com/Ascend310P", "huawei.com/Ascend310"),
    hides=("ASCEND_RT_VISIBLE_DEVICES",),
    injects=("ASCEND_VISIBLE_DEVICES",),
)
VENDORS: Final = {vendor.word: vendor for vendor in (NVIDIA, AMD, ASCEND)}
