"""What two readings of one machine disagree on."""

from __future__ import annotations

from collections.abc import Iterator

from dradriver.topology.machine import Machine


def differences(read: Machine, said: Machine) -> list[str]:
    """Return a line for whatever ``said``, of a ``topo -m`` text, has otherwise; it knows neither bus ids nor uuids."""
    numbers = [[gpu.index for gpu in machine.gpus] for machine in (read, said)]
    if numbers[0] != numbers[1]:
        return [f"GPUs: {numbers[0]}, nvidia-smi has {numbers[1]}"]
    return [*_gpus(read, said), *_nics(read, said)]


def _gpus(read: Machine, said: Machine) -> Iterator[str]:
    cpus = [{node.id: node.cpus for node in machine.numa} for machine in (read, said)]
    for i, (gpu, other) in enumerate(zip(read.gpus, said.gpus, strict=True)):
        at = f"GPU{gpu.index}"
        if other.numa is not None and gpu.numa != other.numa:
            yield f"{at}: NUMA node {gpu.numa}, nvidia-smi has {other.numa}"
        elif other.numa is not None and cpus[0].get(other.numa, "") != cpus[1].get(other.numa, ""):
            yield f"{at}: CPUs {cpus[0].get(other.numa)!r}, nvidia-smi has {cpus[1].get(other.numa)!r}"
        for j in range(i):
            pair = f"GPU{read.gpus[j].index} - {at}"
            if read.links[i][j] != said.links[i][j]:
                yield f"{pair}: {read.links[i][j]} links, nvidia-smi has {said.links[i][j]}"
            elif not said.links[i][j] and read.paths[i][j] != said.paths[i][j]:
                yield f"{pair}: {read.paths[i][j].name}, nvidia-smi has {said.paths[i][j].name}"


def _nics(read: Machine, said: Machine) -> Iterator[str]:
    rows = [dict(zip((nic.name for nic in m.nics), m.nic_paths, strict=True)) for m in (read, said)]
    for name in sorted(rows[0].keys() ^ rows[1].keys()):
        yield f"{name}: only {'discovery' if name in rows[0] else 'nvidia-smi'} has it"
    for name in sorted(rows[0].keys() & rows[1].keys()):
        for gpu, mine, theirs in zip(read.gpus, rows[0][name], rows[1][name], strict=True):
            if mine != theirs:
                yield f"{name} - GPU{gpu.index}: {mine.name}, nvidia-smi has {theirs.name}"
