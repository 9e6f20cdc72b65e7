"""The numbers of GPUs for which simulated jobs find a place on the empty machines of a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dradriver.allocator import Tables, tables_of
from dradriver.topology.machine import Machine


def given(tables: Tables) -> list[int]:
    """Return the numbers of GPUs that a machine can give to one simulated pod, ascending.

    ``tables`` says which sets of the machine's GPUs one pod can use.
    """
    return [gpus for gpus in range(1, tables.size + 1) if tables.fits(gpus, tables.everything)]


class JobSizes:
    """The sizes that simulated jobs can have, in GPUs.

    A job has the fewest possible pods, of sizes as equal as possible (``simulated_queue.pods``). Each pod is on a node
    of its own that can give it all its GPUs. Ascend machines cannot give every number of GPUs (``Machine.blocks``). If
    nodes differ, small nodes have no place for a large pod.

    Attributes:
        pod: GPUs of the largest pod; 0 if no machine gives any.
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
        """Return the smallest possible size of a simulated job with at least this number of GPUs.

        Raises:
            ValueError: ``gpus`` is more than ``most``.
        """
        for fitting in range(gpus, self.most + 1):
            if self._has_place(fitting):
                return fitting
        raise ValueError(f"{gpus} GPUs: the most is {self.most}")

    def cut(self, gpus: int) -> int:
        """Return the smallest possible job size with at least ``gpus`` GPUs, or the largest size if that is smaller."""
        return self.fitting(min(gpus, self.most))

    def mixed(self, mix: Mapping[int, float]) -> dict[int, float]:
        """Return a mix, the share of jobs by size, with sizes raised to possible ones.

        Sizes above ``most`` are left out.
        """
        found: dict[int, float] = {}
        for gpus, share in mix.items():
            if gpus <= self.most:
                fitting = self.fitting(gpus)
                found[fitting] = found.get(fitting, 0.0) + share
        return found

    def _has_place(self, gpus: int) -> bool:
        """Return whether each pod of a job finds a node of its own, if the large pods are placed first.

        ``gpus`` is the number of the job's GPUs. The result does not depend on which nodes the earlier pods take.
        """
        pods = -(-gpus // self.pod)
        least, large = divmod(gpus, pods)
        return self._nodes[least] >= pods and (not large or self._nodes[least + 1] >= large)
