"""The checks of this machine: GPU driver, GPUs, links, MIG, MPS, and whether the node's slices describe it correctly.

A *finding* is the result of one check: PASS, WARN or FAIL, with the repair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from dradriver.cli.verifier.driver_pods import SELECTOR
from dradriver.cli.verifier.finding import Finding, failed, passed, warned
from dradriver.counted import counted
from dradriver.errors import DriverError
from dradriver.node import boot
from dradriver.node.discovery.kept_nics import KeptNics
from dradriver.node.discovery.link_faults import lost, of_machine
from dradriver.node.discovery.problem import Problem
from dradriver.node.faults import Faults
from dradriver.node.repairs import located
from dradriver.node.vendors import vendor_of_node
from dradriver.node.vendors.amd import amd_reading
from dradriver.node.vendors.amd.amd_error_counters import Ras
from dradriver.node.vendors.nvidia.discovery import device_nodes, nvidia_reading
from dradriver.node.vendors.nvidia.discovery.driver_root import inside
from dradriver.topology import profiles
from dradriver.topology.machine import Machine
from dradriver.topology.vendors import AMD, NVIDIA

_MPS: Final = ("usr/bin/nvidia-cuda-mps-control", "usr/local/nvidia/bin/nvidia-cuda-mps-control")
_CARDS: Final = "var/lib/kubelet/plugins/gpu.topology/nics.json"  # the agent's, with the kubelet's usual folder
_MOST: Final = 8  # that are named
_TOOL: Final = {NVIDIA.word: "nvidia-smi -q", AMD.word: "amd-smi static"}
_TOPOLOGY: Final = {NVIDIA.word: "nvidia-smi topo -m and nvidia-smi nvlink -s", AMD.word: "amd-smi topology"}


class Read(NamedTuple):
    """A machine, the problems while it was read, and the faults of its GPUs by uuid."""

    machine: Machine
    problems: tuple[Problem, ...]
    faults: Faults


def read(*, driver_root: Path | None, host_root: Path) -> Read | Finding:
    """Read this machine's GPUs for the checks of ``gputopo verify``.

    Args:
        driver_root: Root of the file system that holds the NVIDIA driver.
        host_root: Where the host's files are.

    Returns:
        The reading, or a finding that says why the machine cannot be read.
    """
    # ``refused``: why the node publishes no GPUs, such as GPUs of two vendors and no choice of one in the chart.
    vendors = vendor_of_node.look(host_root)
    if vendors.refused is not None:
        return failed("driver", vendors.refused, "say which by the chart's discovery, or take the others' GPUs out")

    if vendors.vendor is AMD:
        try:
            # Network cards that are in pods' network namespaces now are known from the node agent's file.
            reading = amd_reading.read(host_root, kept=_nics_of_this_boot(host_root))
        except (DriverError, OSError) as error:
            cure = "load the amdgpu driver and look at amd-smi on the node, and at dmesg"
            return failed("driver", str(error), cure)
        # AMD's faults are counters in sysfs (RAS). NVIDIA's come with the reading below.
        ras, devices = Ras(), host_root / "sys/bus/pci/devices"
        faults = {uuid: ras.read(uuid, devices / node.pci) for uuid, node in reading.nodes.items()}
        return Read(reading.machine, reading.problems, faults)

    if host_root != Path("/"):
        # This runs in a container. Its /dev lacks NVIDIA's device nodes, which NVML opens, if the driver runs in
        # another container (GPU Operator): make them as they are below the driver's root or the host's.
        device_nodes.add_nodes(root / "dev" for root in (driver_root, host_root) if root is not None)
    try:
        nvidia = nvidia_reading.read(driver_root=driver_root, host_root=host_root, kept=_nics_of_this_boot(host_root))
    except (DriverError, OSError) as error:
        return failed(
            "driver", str(error),
            "install NVIDIA's driver and run nvidia-smi on the node. If the driver is below another root "
            "(/run/nvidia/driver of the GPU Operator), write --driver-root, and set driverRoot in the chart",
        )  # fmt: skip
    return Read(nvidia.machine, nvidia.problems, nvidia.faults)


def _nics_of_this_boot(host_root: Path) -> KeptNics:
    """Return the network cards that the agent has seen since this boot, from the agent's file.

    Pods may have these cards now, so that the host does not see them. The result is empty without a file.

    Raises:
        OSError: The kernel does not give the boot id.
    """
    return KeptNics(host_root / _CARDS, boot=boot.boot_id(), writes=False)


def findings(found: Read, *, driver_root: Path | None, host_root: Path) -> Iterator[Finding]:
    """Yield the findings of the machine checks of ``gputopo verify``: GPU driver, GPUs, links, MIG, MPS.

    ``found`` is the machine as ``read`` returned it.
    """
    machine = found.machine
    if machine.vendor is not NVIDIA:
        yield passed("driver", f"amdgpu {machine.driver_version or 'of the kernel'}")
        yield from _gpus(found)
        yield _against_profile(machine)
        yield passed("fractions", f"{machine.vendor.word}'s GPUs have none here: MIG and MPS are not checked")
        return
    yield passed(
        "driver", f"{machine.driver_version or 'its version is not known'}, CUDA {machine.cuda_version or '?'}"
    )
    yield from _gpus(found)
    yield from _links(machine)
    yield _against_profile(machine)
    yield _mig(machine)
    yield _mps(driver_root or host_root)


def _gpus(found: Read) -> Iterator[Finding]:
    products = Counter(gpu.product for gpu in found.machine.gpus)
    ill = False
    for uuid, faults in sorted(found.faults.items()):
        for fault in faults:
            ill = True
            say = failed if fault.effect == "NoSchedule" else warned
            yield say("gpus", f"{uuid}: {fault.kind} {fault.said}", located(fault.advice, uuid=uuid))
    for problem in found.problems[:_MOST]:
        ill = True
        yield warned(
            "gpus",
            str(problem),
            f"run {_TOOL[found.machine.vendor.word]} on the node. The driver uses this reading until it changes",
        )
    if not ill:
        yield passed("gpus", ", ".join(f"{count} x {product}" for product, count in sorted(products.items())))


def _links(machine: Machine) -> Iterator[Finding]:
    ill = lost([one for one, gpu in zip(of_machine(machine), machine.gpus, strict=True) if gpu.mig is None])
    for uuid, faults in sorted(ill.items()):
        for fault in faults:
            yield failed("links", f"{uuid}: {fault.said}", located(fault.advice, uuid=uuid))
    if not ill:
        most = max((one.links for one in of_machine(machine)), default=0)
        yield passed("links", f"no GPU has fewer NVLinks than its siblings: {most}" if most else "no NVLinks")


def _against_profile(machine: Machine) -> Finding:
    """Return the result of a check: whether the machine's links equal those of its profile.

    The profile is the built-in description of a machine with the same product and number of GPUs.
    """
    mine = sorted(one.links for one in of_machine(machine))
    products = Counter(gpu.product for gpu in machine.gpus)
    alike = [
        name
        for name in profiles.names(machine.vendor.word)
        if Counter(gpu.product for gpu in profiles.load(name).gpus) == products
    ]
    if not alike:
        return passed("profile", "no profile has such GPUs, as many as here: nothing to compare with")
    if any(sorted(one.links for one in of_machine(profiles.load(name))) == mine for name in alike):
        return passed("profile", f"the links are those of {' or '.join(alike)}")
    return warned(
        "profile", f"the GPUs are those of {' or '.join(alike)}, and the links are not: {mine} by GPU",
        f"look at {_TOPOLOGY[machine.vendor.word]}. A virtual machine may not see all links",
    )  # fmt: skip


def _mig(machine: Machine) -> Finding:
    on = [gpu for gpu in machine.gpus if gpu.mig is not None]
    if not on:
        able = sum(bool(gpu.profiles) for gpu in machine.gpus)
        return passed(
            "mig", f"no GPU is in MIG mode, and {able} of {len(machine.gpus)} can be" if able else "not supported"
        )
    return passed(
        "mig", f"{len(on)} of {counted(len(machine.gpus), 'GPU')} {'is' if len(on) == 1 else 'are'} in MIG mode"
    )


def _mps(root: Path) -> Finding:
    for place in _MPS:
        path = inside(root, place)
        if path is not None and path.is_file():
            return passed("mps", f"/{place} is there")
    return warned(
        "mps", f"no nvidia-cuda-mps-control below {root}",
        "shares by MPS (shared: mps) need it, and nothing else does. Install the compute "
        "programs of the GPU driver",
    )  # fmt: skip


def against_slices(machine: Machine, published: Machine | None, node: str, namespace: str) -> Finding:
    """Return the result of a check: whether a node's slices describe this machine correctly.

    Args:
        machine: This machine.
        published: The machine in the node's slices; None if they have none.
        node: The node.
        namespace: The driver's namespace.
    """
    log = f"find it by kubectl -n {namespace} get pods -l {SELECTOR} --field-selector spec.nodeName={node}"
    if published is None:
        return failed(
            "slices", f"node {node} has no slices of this driver with its machine",
            f"read the log of the node agent's pod: {log}",
        )  # fmt: skip
    differences = [*_differences(machine, published)]
    if differences:
        return failed(
            "slices", f"the slices of node {node} differ from the machine: {'; '.join(differences[:_MOST])}",
            "read the log of the node agent's pod, and restart the pod if this lasts a minute: "
            f"{log}",
        )  # fmt: skip
    return passed(
        "slices", f"the slices of node {node} have the same {counted(len(machine.gpus), 'GPU')}, with the same links"
    )


def _differences(machine: Machine, published: Machine) -> Iterator[str]:
    mine = {gpu.uuid: i for i, gpu in enumerate(machine.gpus)}
    theirs = {gpu.uuid: i for i, gpu in enumerate(published.gpus)}
    for uuid in sorted(mine.keys() - theirs.keys()):
        yield f"{uuid} is not published"
    for uuid in sorted(theirs.keys() - mine.keys()):
        yield f"{uuid} is published and not here"
    both = sorted(mine.keys() & theirs.keys())
    for one in both:
        if machine.gpus[mine[one]].product != published.gpus[theirs[one]].product:
            yield f"{one} is a {machine.gpus[mine[one]].product}"
        for other in both:
            here = machine.links[mine[one]][mine[other]]
            there = published.links[theirs[one]][theirs[other]]
            if one < other and here != there:
                yield f"{one} and {other} have {here} {machine.vendor.link}s, published are {there}"
    if published.driver_version != machine.driver_version:
        yield f"driver {machine.driver_version} runs, published is {published.driver_version}"
