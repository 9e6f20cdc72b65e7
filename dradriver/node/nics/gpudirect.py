"""Checks by the kernel's files whether network cards can reach the memory of GPUs (GPUDirect RDMA).

There are two ways: peer memory modules and DMA-BUF. For peer memory, this module checks the same files as NCCL
(``net_ib/gdr.cc``) and RCCL (``net_ib.cc``). DMA-BUF can be tested only by a program that has a GPU and a card open.
For DMA-BUF, the files only tell whether it is likely to work.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from dradriver.node.discovery import sysfs
from dradriver.topology.vendors import AMD, NVIDIA, Vendor

YES: Final = "yes"
LIKELY: Final = "likely"
NO: Final = "no"
ANSWERS: Final = (YES, LIKELY, NO)

_NVIDIA_PEER: Final = (
    "sys/kernel/mm/memory_peers/nv_mem/version",
    "sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "sys/module/nvidia_peermem/version",
)
_AMD_PEER: Final = tuple(
    f"sys/{folder}/amdkfd/version" for folder in ("kernel/mm/memory_peers", "kernel/memory_peers", "memory_peers")
)
_AMD_CONFIG: Final = ("CONFIG_DMABUF_MOVE_NOTIFY=y", "CONFIG_PCI_P2PDMA=y")
_OPEN: Final = "Open Kernel Module"
_DMABUF_SINCE: Final = (5, 12)
_RELEASE: Final = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})[!-~]{0,120}")
_MOST_BYTES: Final = 1 << 20  # of a kernel's configuration, which has some 300 kB
_SYMBOL: Final = b" ib_register_peer_memory_client"
_MOST_SYMBOLS: Final = 64 << 20  # bytes of the kernel's list of symbols, which has some 10 MB


class Answer(msgspec.Struct, frozen=True):
    """Whether GPUDirect RDMA works.

    Attributes:
        word: ``yes``, ``likely`` or ``no`` (``ANSWERS``).
        said: The evidence for the answer.
        cure: The repair; empty unless ``word`` is ``no``.
    """

    word: str
    said: str
    cure: str = ""


def answer(root: Path, vendor: Vendor, *, proc_root: Path | None = None) -> Answer | None:
    """Return whether network cards can reach the GPUs' memory by GPUDirect RDMA; None if the files do not tell.

    Args:
        root: Folder that contains the host's /sys and /boot.
        vendor: The vendor of the GPUs.
        proc_root: Folder that contains the host's /proc; None for ``root``.
    """
    release = sysfs.text((proc_root or root) / "proc/sys/kernel/osrelease")
    if vendor is NVIDIA:
        return _nvidia(root, proc_root or root, release)
    return _amd(root, proc_root or root, release) if vendor is AMD else None


def _nvidia(root: Path, proc_root: Path, release: str) -> Answer:
    """Return whether GPUDirect RDMA works with NVIDIA's driver, and the repair if it does not.

    ``release`` is the release of the running kernel, for example ``5.15.0-91-generic``.
    """
    for file in _NVIDIA_PEER:
        if sysfs.text(root / file):
            return Answer(YES, f"/{file} is there")
    # Without nvidia_peermem the kernel's DMA-BUF can do it: with NVIDIA's open kernel modules, a new enough kernel, and
    # cards of Mellanox.
    is_open = _OPEN in sysfs.text(proc_root / "proc/driver/nvidia/version")
    kernel = _RELEASE.fullmatch(release)
    is_new_kernel = kernel is not None and (int(kernel[1]), int(kernel[2])) >= _DMABUF_SINCE
    has_cards = bool(sysfs.entries(root / "sys/module/mlx5_ib"))
    if is_open and is_new_kernel and has_cards:
        return Answer(LIKELY, f"by DMA-BUF: open kernel modules, kernel {release}, mlx5_ib")
    lacking = [
        name
        for is_there, name in (
            (is_open, "open kernel modules"),
            (is_new_kernel, "a kernel of 5.12 or newer"),
            (has_cards, "the module mlx5_ib"),
        )
        if not is_there
    ]
    return Answer(
        NO, f"nvidia_peermem is not loaded, and DMA-BUF lacks {', '.join(lacking)}",
        "modprobe nvidia_peermem, or install NVIDIA's open kernel modules on a kernel of 5.12 or newer",
    )  # fmt: skip


def _amd(root: Path, proc_root: Path, release: str) -> Answer:
    for file in _AMD_PEER:
        if sysfs.text(root / file):
            return Answer(YES, f"/{file} is there")
    if _has_symbol(proc_root / "proc/kallsyms"):
        return Answer(YES, "the kernel's RDMA modules take peers (ib_register_peer_memory_client)")
    if _RELEASE.fullmatch(release) and "/" not in release and _configured(root / f"boot/config-{release}"):
        return Answer(LIKELY, "by DMA-BUF, where jobs set NCCL_DMABUF_ENABLE=1")
    return Answer(
        NO, "amdkfd is no peer of the RDMA modules, and the kernel is not known to be built for DMA-BUF",
        "install RDMA modules with peer memory (MLNX_OFED or the kernel's vendor), or a kernel with "
        f"{' and '.join(_AMD_CONFIG)}",
    )  # fmt: skip


def _configured(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            lines = file.read(_MOST_BYTES).decode("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return False
    return set(_AMD_CONFIG) <= set(lines)


def _has_symbol(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            end = b""
            for _ in range(_MOST_SYMBOLS >> 20):
                block = file.read(1 << 20)
                if _SYMBOL in end + block:
                    return True
                if not block:
                    return False
                end = block[-len(_SYMBOL) :]
    except (OSError, ValueError):
        pass
    return False
