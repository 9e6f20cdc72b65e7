"""Who changes what the driver wrote on a pod, a story: `python -m tests.contract.forged_notes NAME`.

Real are the API server, the chart's webhook configurations, rights and policies, and the webhook, which ends halfway.
No controller runs: a client with its account writes what it writes.
"""

from __future__ import annotations

import asyncio
import itertools
import string
import sys
from collections.abc import Awaitable, Mapping
from types import MappingProxyType
from typing import Any, Final

from dradriver.api.base import names
from dradriver.api.base.jsonpatch import Patch
from dradriver.kube.client import ApiError, Client, PatchKind
from dradriver.kube.config import from_kubeconfig
from dradriver.kube.resources import PODS
from tests.bench.throughput import chart
from tests.bench.throughput.driver import Driver
from tests.cluster.nodeless import Nodeless
from tests.contract.stories import NAMESPACE
from tests.fakes.admission import pod
from tests.paths import REPO

Object = dict[str, Any]

IN_FORCE_S: Final = 60
LIMIT_S: Final = 60  # of one request: a pod of megabytes takes the server seconds
SMALL, BIG, TOO_BIG = 0, 900_000, 1_400_000  # letters, each of which Go's JSON has as six bytes
THEIRS: Final = "example.com/theirs"
KEYS: Final = map("".join, itertools.product(string.ascii_letters, repeat=3))
MOST: Final = dict.fromkeys(itertools.islice(KEYS, 40_000), "")  # annotations, as any tenant may send
NOTE: Final = '{"version":2,"containers":["c0"],"request":{"kind":"whole","containers":[8]}}'
DOWN: Final = "failed calling webhook"
TOO_LARGE: Final = "Make the object smaller"


def noted(**changes: str | None) -> Object:
    return {"metadata": {"annotations": {names.PREFIX + key: text for key, text in changes.items()}}}


FORGED: Final[dict[str, Object]] = {
    "the note grows": noted(request=NOTE),
    "the note goes": noted(request=None),
    "all annotations go": {"metadata": {"annotations": None}},
    "a result is added": noted(allocated="8 GPUs"),
    "the annotation that it is made from changes": noted(policy="best-effort"),
    "an annotation is added by the other prefix": {"metadata": {"annotations": {names.ALIAS_PREFIX + "share": "0.5"}}},
    "the label changes": {"metadata": {"labels": {names.LABEL: names.LABEL_STATIC}}},
    "the label goes": {"metadata": {"labels": {names.LABEL: None}}},
    "the gate goes": {"spec": {"schedulingGates": [{"name": THEIRS}]}},
    "all gates go": {"spec": {"schedulingGates": None}},
    "the claim is another": {"spec": {"resourceClaims": [{"name": names.POD_CLAIM, "resourceClaimName": "other"}]}},
    "note and finalizers go": {"metadata": {"annotations": {names.REQUEST: None}, "finalizers": None}},
}
PASSES: Final[dict[str, Object | Patch]] = {
    "a label of others": {"metadata": {"labels": {THEIRS: "x"}}},
    "an annotation of others": {"metadata": {"annotations": {THEIRS: "x"}}},
    "an image": Patch().add("spec", "containers", 0, "image", value="other"),
    "a gate of others goes": {"spec": {"schedulingGates": [{"name": names.GATE}]}},
    "finalizers go": {"metadata": {"finalizers": None}},
}


class Story:
    """Pods of megabytes and small ones."""

    def __init__(self, client: Client, controller: Client) -> None:
        self._client, self._controller = client, controller

    async def begin(self) -> None:
        """Create the pods once the API server asks the webhook, which answers."""
        async with asyncio.timeout(IN_FORCE_S):
            for number in itertools.count():
                name = f"probe-{number}"
                if not await refusal(self.create(name, SMALL)) and await self.is_kept(name):
                    break
                await asyncio.sleep(0.5)
        for name, size, more in ("small", SMALL, {}), ("big", BIG, {}), ("many", SMALL, MOST), ("placed", SMALL, {}):
            made = await self.create(name, size, more)
            assert made["metadata"]["labels"][names.LABEL] == names.LABEL_PLACED
        await self._client.create(PODS, pod(None, name="foreign", namespace=NAMESPACE, labels={"a": "b"}))

    async def with_webhook(self) -> None:
        """Try what a tenant may try while the webhook answers."""
        text = await refusal(self.create("too-big", TOO_BIG))
        assert TOO_LARGE in text, text
        for what in ("the note grows", "the label goes", "the gate goes", "note and finalizers go"):
            await self.fails(what, "big", FORGED[what], TOO_LARGE)
        before = await self.get("small")
        for what in ("the note grows", "a result is added", "the label goes", "the gate goes", "the claim is another"):
            assert not await refusal(self.patch("small", FORGED[what])), what
            assert ours(await self.get("small")) == ours(before), what
        await self.passes("placed", "a label of others")

    async def without_webhook(self) -> None:
        """Try the same while nobody answers: what is the driver's stays, and nothing else is held up."""
        for what, body in FORGED.items():
            await self.fails(what, "small", body, DOWN)
        for name in ("big", "many"):
            await self.fails("the note grows", name, FORGED["the note grows"], DOWN)
        mark = {"metadata": {"labels": {names.LABEL: names.LABEL_PLACED}, "annotations": {names.REQUEST: NOTE}}}
        await self.fails("another becomes one of ours", "foreign", mark, DOWN)
        for what in PASSES:
            for name in ("small", "big"):
                await self.passes(name, what)
        await self.passes("many", "a label of others")
        status = await self._client.patch(
            PODS, "big", {"status": {"message": "x"}}, kind=PatchKind.MERGE, namespace=NAMESPACE, subresource="status"
        )
        assert status["status"]["message"] == "x"
        gates = (await self.get("placed"))["spec"]["schedulingGates"]
        lift = Patch().add("metadata", "annotations", names.ALLOCATED, value="x")
        lift.remove("spec", "schedulingGates", [gate["name"] for gate in gates].index(names.GATE))
        await self._controller.patch(PODS, "placed", lift, kind=PatchKind.JSON, namespace=NAMESPACE)
        lifted = await self.get("placed")
        assert lifted["metadata"]["annotations"][names.ALLOCATED] == "x"
        assert lifted["spec"]["schedulingGates"] == [{"name": THEIRS}]

    async def end(self) -> None:
        """Delete the pods: their finalizers are nobody's."""
        pods, _ = await self._client.list(PODS, namespace=NAMESPACE)
        for found in pods:
            name = found["metadata"]["name"]
            await self.patch(name, PASSES["finalizers go"])
            await self._client.delete(PODS, name, namespace=NAMESPACE)

    async def create(self, name: str, size: int, more: Mapping[str, str] = MappingProxyType({})) -> Object:
        words = {names.POLICY: "nvlink", **more}
        made = pod(1, annotations=words, name=name, namespace=NAMESPACE, finalizers=[THEIRS])
        made["spec"]["schedulingGates"] = [{"name": THEIRS}]
        made["spec"]["containers"][0]["env"] = [{"name": "TEXT", "value": "<" * size}]
        return await self._client.create(PODS, made)

    async def is_kept(self, name: str) -> bool:
        """Whether all the chart's webhooks are asked: a new pod has its note, and keeps it."""
        await refusal(self.patch(name, FORGED["the note grows"]))
        kept = (await self.get(name))["metadata"]["annotations"].get(names.REQUEST, NOTE)
        return bool(kept != NOTE)

    async def get(self, name: str) -> Object:
        return await self._client.get(PODS, name, namespace=NAMESPACE)

    async def patch(self, name: str, body: Object | Patch) -> Object:
        kind = PatchKind.JSON if isinstance(body, Patch) else PatchKind.MERGE
        return await self._client.patch(PODS, name, body, kind=kind, namespace=NAMESPACE)

    async def fails(self, what: str, name: str, body: Object, why: str) -> None:
        before = await self.get(name)
        text = await refusal(self.patch(name, body))
        assert why in text, f"{name}: {what}: {text or 'not refused'}"
        assert await self.get(name) == before

    async def passes(self, name: str, what: str) -> None:
        before = await self.get(name)
        text = await refusal(self.patch(name, PASSES[what]))
        assert not text, f"{name}: {what}: {text}"
        after = await self.get(name)
        assert ours(after) == ours(before), f"{name}: {what}"
        assert after != before, f"{name}: {what}"


def ours(found: Object) -> Object:
    """Return what of a pod is the driver's."""
    metadata, spec = found["metadata"], found["spec"]
    noted = {key: text for key, text in metadata["annotations"].items() if key.startswith(names.PREFIX)}
    gated = {"name": names.GATE} in spec.get("schedulingGates", ())
    return {"annotations": noted, "label": metadata["labels"].get(names.LABEL), "gated": gated} | {
        "claims": spec.get("resourceClaims")
    }


async def refusal(request: Awaitable[Object]) -> str:
    """Return how a request is refused; empty where it is not."""
    try:
        await request
    except ApiError as error:
        return error.message
    return ""


async def main(plane: Nodeless) -> None:
    """Tell the story."""
    rendered = await chart.render(plane.helm, REPO, plane.folder / "helm")
    driver = Driver(REPO, rendered, plane.folder / "driver", profiles=None)
    await driver.prepare(chart.Kubectl(plane.binaries / "kubectl", plane.kubeconfig), plane.kubeconfig)
    account = from_kubeconfig(driver.kubeconfig("controller"))
    async with (
        Client(from_kubeconfig(plane.kubeconfig), user_agent="contract", timeout_s=LIMIT_S) as client,
        Client(account, user_agent="contract", timeout_s=LIMIT_S) as controller,
    ):
        story = Story(client, controller)
        try:
            async with driver.running("webhook"):
                await story.begin()
                await story.with_webhook()
            await story.without_webhook()
        finally:
            await story.end()


if __name__ == "__main__":
    asyncio.run(main(Nodeless(sys.argv[1])))
