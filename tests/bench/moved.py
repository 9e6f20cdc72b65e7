"""What no policy can do better than on sums alone: all that runs is moved at will whenever somebody comes."""

from __future__ import annotations

from collections.abc import Sequence

from dradriver.allocator import Amount, MigPart, Request, Share, SharePart, Whole
from dradriver.cli.simulator.mixed_policies import Taken
from dradriver.topology.machine import Machine


class Moved:
    """Whoever fits in sum has a place: GPUs taken whole, and those that all shares and all slices fill.

    No node and no placement is in anybody's way, so of policies that turn nobody away for whom there is room none
    serves more GPU time for long. One that does may: to refuse the large ones makes room for many small ones.
    """

    def __init__(self, machines: Sequence[Machine]) -> None:
        self._nodes = len(machines)
        self._gpus = sum(len(machine.gpus) for machine in machines)
        self._profiles = {profile.name: profile for profile in machines[0].gpus[0].profiles}
        self._slices = max((profile.size for profile in self._profiles.values()), default=1)
        self._compute = max((profile.compute for profile in self._profiles.values()), default=1)
        self._memory_mib = machines[0].gpus[0].memory_mib
        self._whole = self._percent = self._size = self._workloads = 0

    def place(self, request: Request) -> Taken | None:
        """See ``Policy``."""
        taken = self._taken(request)
        self._count(taken, 1)
        shared = -(-self._percent // 100)
        sliced = max(-(-self._size // self._slices), -(-self._workloads // self._compute))
        if self._whole + shared + sliced <= self._gpus:
            return taken
        self._count(taken, -1)
        return None

    def give_back(self, taken: Taken) -> None:
        """See ``Policy``."""
        self._count(taken, -1)

    def empty(self) -> Sequence[Sequence[int]]:
        """See ``Policy``; which GPUs are empty is not known."""
        return [()] * self._nodes

    def _taken(self, request: Request) -> Taken:
        if isinstance(request, Whole):
            return Taken(0, tuple(range(request.gpus)))
        if isinstance(request, Share):
            amount: Amount = request.amounts[0].of(self._memory_mib)
            return Taken(0, (), SharePart(gpu=0, amount=amount))
        name = request.profiles[0][0]
        return Taken(0, (), MigPart(gpu=0, profile=name, start=0, size=self._profiles[name].size))

    def _count(self, taken: Taken, sign: int) -> None:
        match taken.part:
            case SharePart():
                self._percent += sign * taken.part.amount.cores
            case MigPart():
                self._size += sign * taken.part.size
                self._workloads += sign * self._profiles[taken.part.profile].compute
            case None:
                self._whole += sign * len(taken.gpus)
