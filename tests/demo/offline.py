"""The demo without a cluster: the same examples through the same admission code and allocator."""

from __future__ import annotations

from collections.abc import Mapping

from dradriver.allocator import Choice, Fleet, NoPlaceError, Whole
from dradriver.api.pod.annotations import Annotations
from dradriver.topology import profiles
from dradriver.topology.groups import group
from dradriver.topology.machine import Machine
from tests.demo.examples import pods, templates
from tests.demo.plain import FirstFit, worth
from tests.demo.table import Row
from tests.fakes.admission import viewed
from tests.manifests import has_wish
from webhook.gpu_limits import asks


def rows(machines: Mapping[str, str]) -> list[Row]:
    """Return the table's rows for nodes that pretend to be the given profiles."""
    loaded = {node: profiles.load(profile, seed=node) for node, profile in machines.items()}
    fleet, plain = Fleet(), FirstFit(loaded)
    for node, machine in loaded.items():
        fleet.set_node(node, machine, [gpu.index for gpu in machine.gpus])
    table = []
    for name, pod in pods():
        if not has_wish(pod):
            count = next(iter(templates().values()))["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"]
            got: Choice | None = _by_attribute(loaded, fleet, count)
            request, reason = Whole(containers=(count,)), ""
        else:
            parsed = Annotations(pod["metadata"]["annotations"]).request(asks(viewed(pod)))
            assert isinstance(parsed, Whole), "the demonstration's pods ask for whole GPUs"
            request = parsed
            try:
                got, reason = fleet.rank(request, limit=1)[0], ""
            except NoPlaceError as error:
                got, reason = None, str(error)
        if got is not None:
            fleet.set_free(got.node, fleet.free(got.node) - set(got.gpus))
        table.append(Row(name, got, plain.take(request, list(loaded)), reason))
    return table


def _by_attribute(machines: Mapping[str, Machine], fleet: Fleet, count: int) -> Choice | None:
    """What the scheduler finds by ``matchAttribute: gpu.topology/nvlinkGroup<count>``: the first group that is free."""
    for node, machine in sorted(machines.items()):
        groups = group(machine)
        for number in dict.fromkeys(n for n in groups.by_size[count] if n is not None):
            members = {g.index for g, n in zip(machine.gpus, groups.by_size[count], strict=True) if n == number}
            if members <= fleet.free(node):
                return worth(machine, sorted(members), node=node)
    return None
