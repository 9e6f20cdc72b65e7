"""Tenants' caps in a story: what they are, what counts for them, and that no controller goes beyond one it knows of.

All of it is read from claims as the server has them, by other means than the controller's books.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from dradriver.allocator.request import Whole
from dradriver.api.pod import resolved
from dradriver.api.policies.policy_sections import DEFAULTS, Policies
from dradriver.api.policies.tenant_policies import Cap, Tenant
from dradriver.kube.resources import RESOURCE_CLAIMS
from tests.fakes.apistore import Event, Object
from tests.fakes.control_plane import fit
from tests.fakes.control_plane.devices import results
from tests.fakes.storeclient import Call
from tests.simulator import machines
from tests.simulator.taking import Gpu, Takes, given

if TYPE_CHECKING:
    from tests.simulator.world import World

SPACES: Final = ("default", "team-a", "team-g")
LATE_S: Final = 3.0  # until a process has a file that was changed
KNOWN_S: Final = 10.0  # from when on a decision counts what another process, or a stranger, has made
IN_FORCE_S: Final = 30.0  # that what was decided by an earlier file may take to be written


class CapRules:
    """The caps of a story, and what they say of it.

    Attributes:
        policies: The file as it is now.
        changed: Told each new file.
    """

    def __init__(self, world: World) -> None:
        self.policies = DEFAULTS
        self.changed: Callable[[Policies, random.Random], object] = lambda _, __: None
        self._world = world
        self._files: list[tuple[float, Policies]] = []
        self._strange: dict[str, tuple[int, float]] = {}  # when claims of strangers got GPUs: version and time
        world.server.listeners.append(self._happened)

    def begin(self, rng: random.Random) -> None:
        """Draw whose namespaces are, their caps, and when these change."""
        tenants = rng.choice(((SPACES,), (SPACES[:1], SPACES[1:]), (SPACES[1:],)))
        self._put(tenants, rng)
        for _ in range(rng.choice((0, 1, 3))):
            self._world.loop.call_at(rng.uniform(0, self._world.plan.until), self._put, tenants, rng)

    def _put(self, tenants: Iterable[tuple[str, ...]], rng: random.Random) -> None:
        def cap() -> tuple[Cap, ...]:
            caps = [Cap(gpus=rng.choice((0, 0.5, 1, 2, 4, 6, 8, 12)))] if rng.random() < 0.8 else []
            if rng.random() < 0.6 or not caps:
                products = rng.sample(("NVIDIA GeForce*", "NVIDIA RTX*", "Tesla*", "NVIDIA H100*", "NVIDIA A100*"), 2)
                caps.append(Cap(gpus=rng.choice((0, 1, 2, 4)), products=tuple(products)))
            return tuple(caps)

        named = {f"t{number}": Tenant(namespaces=spaces, cap=cap()) for number, spaces in enumerate(tenants)}
        self.policies = Policies(tenants=named)
        self._files.append((self._world.loop.now, self.policies))
        self._world.trace("caps: %s", {name: tenant.cap for name, tenant in named.items()})
        self.changed(self.policies, rng)
        self._world.truth.revision += 1
        self._world.health.trouble(LATE_S + 1.0)

    def _happened(self, event: Event) -> None:
        if event.plural == RESOURCE_CLAIMS.plural and event.new is not None:
            uid = event.new["metadata"]["uid"]
            if uid not in self._world.truth.made and given(event.new, self._world.truth.homes):
                self._strange.setdefault(uid, (event.version, self._world.loop.now))

    # What no controller may do.

    def beyond(self, claim: Object, call: Call, leads_since: float, known: Callable[[str], bool]) -> str:
        """Return what is wrong with a claim that a controller made: it knew of others that fill its tenant's cap.

        Args:
            claim: The claim.
            call: The request.
            leads_since: When its sender began to lead: it knows all that was there then.
            known: Whether it could know of the claim of this uid, which a controller made.
        """
        namespace, now = claim["metadata"]["namespace"], self._world.loop.now
        truth = self._world.truth

        def counts(other: Object) -> bool:
            uid = other["metadata"]["uid"]
            if uid in truth.made:
                made = truth.made[uid]
                settled = made.replica == call.replica or made.at < max(leads_since, now - KNOWN_S)
                return truth.live(other) and settled and known(uid)
            version, since = self._strange.get(uid, (0, now))
            return 0 < version <= call.seen and since < max(leads_since, now - KNOWN_S)

        takes = truth.made[claim["metadata"]["uid"]].takes
        for spaces, number, allowed in self._allowed(namespace):
            products = self._caps(namespace)[number].products
            own = self._gpus(takes, products)
            if not own:
                continue
            used = sum(
                self._gpus(self._held(other), products)
                for other in self._of(spaces)
                if other["metadata"]["uid"] != claim["metadata"]["uid"] and counts(other)
            )
            if used + own > allowed + 1e-6:
                return f"{call} takes {own:g} where {used:g} of {allowed:g} GPUs {' '.join(products)} are held"
        return ""

    def _allowed(self, namespace: str) -> Iterator[tuple[tuple[str, ...], int, float]]:
        """Give the namespaces and the most that each cap allowed of late; any number where there was no such cap."""
        now, caps = self._world.loop.now, self._caps(namespace)
        spaces = next((t.namespaces for t in self.policies.tenants.values() if namespace in t.namespaces), ())
        files = [file for at, file in self._files if at > now - IN_FORCE_S]
        files += [file for at, file in self._files if at <= now - IN_FORCE_S][-1:]
        for number, cap in enumerate(caps):
            allowed = []
            for file in files:
                own = next(tenant.cap for tenant in file.tenants.values() if namespace in tenant.namespaces)
                allowed += [each.gpus for each in own if each.products == cap.products] or [1e9]
            yield spaces, number, max(allowed)

    def _caps(self, namespace: str) -> tuple[Cap, ...]:
        return next((t.cap for t in self.policies.tenants.values() if namespace in t.namespaces), ())

    # What nobody need do.

    def leaves(self, namespace: str, gpus: float, node: str) -> bool:
        """Return whether the caps surely leave so many GPUs of a node, whatever is about to happen counted as done."""
        truth = self._world.truth
        product = self._product(node)
        for spaces, number, _ in self._allowed(namespace):
            cap = self._caps(namespace)[number]
            if not _is_of(product, cap.products):
                continue
            used = sum(self._gpus(self._held(claim), cap.products, most=True) for claim in self._of(spaces))
            used += sum(self._gpus(takes, cap.products, most=True) for key, takes in truth.unsure() if key[0] in spaces)
            used += sum(truth.kept.values()) + sum(map(self._nowhere, self._of(spaces)))
            if used + gpus > cap.gpus + 1e-6:
                return False
        return True

    def serves(self, pod: Object, node: str) -> bool:
        """Return whether the caps surely leave a pod what it asks for on a node."""
        if not self._caps(pod["metadata"]["namespace"]):
            return True
        request = resolved.read(fit.notes_of(pod)).request
        parts = request.amounts if not isinstance(request, Whole) and hasattr(request, "amounts") else ()
        gpus = float(request.gpus) if isinstance(request, Whole) else float(max(len(parts), 4))
        return self.leaves(pod["metadata"]["namespace"], gpus, node)

    def _of(self, spaces: Iterable[str]) -> list[Object]:
        return [claim for claim in self._world.server.all(RESOURCE_CLAIMS) if claim["metadata"]["namespace"] in spaces]

    def _nowhere(self, claim: Object) -> int:
        """Return how many devices a claim was given that no node has: nobody knows what they are."""
        return sum(result.get("device") not in self._world.truth.homes for result in results(claim))

    def _held(self, claim: Object) -> Mapping[Gpu, Takes]:
        truth, uid = self._world.truth, claim["metadata"]["uid"]
        return given(claim, truth.homes) or (truth.made[uid].takes if uid in truth.made else {})

    def _gpus(self, takes: Mapping[Gpu, Takes], products: tuple[str, ...], *, most: bool = False) -> float:
        """Return how many GPUs of some products are taken; ``most``: all of one where nobody knows of its slices."""
        mine = ((gpu, own) for gpu, own in takes.items() if _is_of(self._product(gpu[0]), products))
        return sum(
            1.0 if most and any(part.hidden for part in own or ()) else self._part(gpu, own) for gpu, own in mine
        )

    def _part(self, gpu: Gpu, takes: Takes) -> float:
        if takes is None:
            return 1.0
        home = self._world.truth.homes[gpu[1]]
        slices, memory = home.slices or 8, home.memory_mib
        return sum(
            part.slices / slices if part.slices else max(part.cores / 100, part.memory_mib / memory) for part in takes
        )

    def _product(self, node: str) -> str:
        return (
            machines.machine(self._world.nodes[node].profile, node).gpus[0].product if node in self._world.nodes else ""
        )


def _is_of(product: str, products: tuple[str, ...]) -> bool:
    return not products or any(fnmatchcase(product, each) for each in products)
