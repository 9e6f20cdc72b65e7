"""The sizes that simulated jobs can have on some machines: all pods find a place where nobody else is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dradriver.allocator import Tables, tables_of
from dradriver.topology.machine import Machine


def given(tables: Tables) -> list[int]:
    """Return the sizes, in GPUs, of a simulated job's pod for which a machine has room, ascending."""
    return [gpus for gpus in range(1, tables.size + 1) if tables.fits(gpus, tables.everything)]


class JobSizes:
    """The sizes that simulated jobs can have, in GPUs.

    A job has as few pods as possible, as alike as possible (``simulated_queue.pods``). Each is on a node of its own
    that gives so many. Products of Ascend do not give every number (``Machine.blocks``), and of unlike nodes the small
    ones have no place for a large pod.

    Attributes:
        pod: GPUs of the largest pod; 0 where no machine gives any.
        most: GPUs of the largest job.
    """

    def __init__(self, machines: Sequence[Machine]) -> None:
        self._nodes: Counter[int] = Counter()  # that give a pod so many GPUs
        for tables, count in Counter(map(tables_of, machines)).items():
            for gpus in given(tables):
                self._nodes[gpus] += count
        self.pod = max(self._nodes, default=0)
        every = range(self.pod * len(machines), 0, -1)
        self.most = next((gpus for gpus in every if self._has_place(gpus)), 0)

    def fitting(self, gpus: int) -> int:
        """Return the least possible size of a simulated job with at least this number of GPUs.

        Raises:
            ValueError: It is more than ``most``.
        """
        for fitting in range(gpus, self.most + 1):
            if self._has_place(fitting):
                return fitting
        raise ValueError(f"{gpus} GPUs: the most is {self.most}")

    def cut(self, gpus: int) -> int:
        """Return the least possible size of a simulated job with this number of GPUs, at most the largest one."""
        return self.fitting(min(gpus, self.most))

    def mixed(self, mix: Mapping[int, float]) -> dict[int, float]:
        """Return a mix of job sizes in which each size is one that simulated jobs can have, without too large ones."""
        found: dict[int, float] = {}
        for gpus, share in mix.items():
            if gpus <= self.most:
                fitting = self.fitting(gpus)
                found[fitting] = found.get(fitting, 0.0) + share
        return found

    def _has_place(self, gpus: int) -> bool:
        """Whether a job's pods, the large ones first, find a node each, whichever nodes the others took."""
        pods = -(-gpus // self.pod)
        least, large = divmod(gpus, pods)
        return self._nodes[least] >= pods and (not large or self._nodes[least + 1] >= large)
