"""What a pod is told if the server answers a write with 403: which right is missing, or what a policy refuses."""

from __future__ import annotations

from typing import Final, cast

import pytest

from dradriver.api.base.objects import Metadata
from dradriver.api.base.pods import Pod
from dradriver.api.gangs.suspendable_owners import Suspendable
from dradriver.controller.owners.evict_pods import delete, evict
from dradriver.controller.owners.owner_suspension import suspend
from dradriver.controller.owners.topmost_owner import Top
from dradriver.controller.writing.write_outcome import RefusedError
from dradriver.kube.client import ApiError, Client
from tests.fakes.control_plane.jobs import JOBS
from tests.fakes.gpucluster import GpuCluster

BY_POLICY: Final = "ValidatingAdmissionPolicy 'x' with binding 'x' denied request: not in this namespace"
BY_WEBHOOK: Final = 'admission webhook "x.example.com" denied the request: not in this namespace'
BY_RIGHTS: Final = 'pods "p" is forbidden: User "controller" cannot do this'
ADVICE: Final = "in the chart's values"


async def write(client: Client, verb: str) -> None:
    pod = Pod(metadata=Metadata(name="p", namespace="default", uid="1"))
    job = Suspendable(metadata=Metadata(name="j", namespace="default", uid="2"))
    if verb == "evict":
        await evict(client, pod, as_seen=False, chart_value="controller.idleEviction", refused="refused")
    elif verb == "delete":
        await delete(client, [pod])
    else:
        await suspend(client, Top(JOBS, job), gang=("default", "g"), loss="x", reason="x")


async def refusal(verb: str, message: str) -> str:
    """Return how the driver words a 403 to a write."""
    cluster = GpuCluster()
    cluster.client.refuse[verb] = [ApiError(403, "Forbidden", message)]
    with pytest.raises(RefusedError) as caught:
        await write(cast("Client", cluster.client), verb)
    return str(caught.value)


@pytest.mark.parametrize("verb", ["evict", "delete", "patch"])
async def test_a_missing_right_is_answered_with_the_value_that_grants_it(verb: str) -> None:
    assert ADVICE in await refusal(verb, BY_RIGHTS)


@pytest.mark.parametrize("message", [BY_POLICY, BY_WEBHOOK])
@pytest.mark.parametrize("verb", ["evict", "delete", "patch"])
async def test_what_a_policy_refuses_is_shown_as_the_policy_says_it(verb: str, message: str) -> None:
    shown = await refusal(verb, message)
    assert shown.endswith(message)
    assert ADVICE not in shown


@pytest.mark.parametrize("verb", ["evict", "delete", "patch"])
async def test_a_long_message_is_cut(verb: str) -> None:
    assert len(await refusal(verb, BY_POLICY + "x" * 10_000)) < 1000
