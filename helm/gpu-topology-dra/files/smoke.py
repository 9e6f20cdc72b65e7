"""What `helm test` asks of an installed driver: are GPUs published, is the webhook asked and trusted."""

import asyncio
import sys
from typing import Any

from dradriver import __version__
from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.kube.client import ApiError, Client
from dradriver.kube.config import ServerConfig, in_cluster
from dradriver.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES

NAMESPACE = "default"  # one whose claims come to the webhook; nothing is made in it, for it is a dry run
WEBHOOK = "claims.gpu.topology"
# A claim that nobody may have: whoever refuses it was asked.
CLAIM: dict[str, Any] = {
    "apiVersion": RESOURCE_CLAIMS.api_version,
    "kind": RESOURCE_CLAIMS.kind,
    "metadata": {"generateName": "helm-test-"},
    "spec": {
        "devices": {
            "config": [
                {"opaque": {"driver": names.DRIVER, "parameters": {"apiVersion": "helm.test/v1", "kind": "NotOurs"}}}
            ]
        }
    },
}


async def main(server: ServerConfig, *, reviewed: bool) -> None:
    """Ask; ``reviewed``: the webhook is to be asked about claims of the namespace.

    Raises:
        SystemExit: Something is not as it should be; the message says what to look at.
    """
    async with Client(server, user_agent=f"helm-test/{__version__}") as client:
        slices, _ = await client.list(RESOURCE_SLICES, field_selector=f"spec.driver={names.DRIVER}", type=ResourceSlice)
        pools = {one.spec.pool.name for one in slices if not names.is_seat(one.spec.driver, one.spec.pool.name)}
        if not pools:
            sys.exit(
                "no node has published its GPUs: see that the node agent's pods run (kubectl get daemonset), that a "
                "label says which nodes have GPUs (the value node.gpuLabels), and the logs of these pods"
            )
        print(f"version {__version__}: the GPUs of {len(pools)} nodes are published")
        if not reviewed:
            print(f"namespace {NAMESPACE} is excluded from the webhook, which is not asked therefore")
            return
        try:
            await client.create(RESOURCE_CLAIMS, CLAIM, namespace=NAMESPACE, dry_run=True)
        except ApiError as error:
            if WEBHOOK in error.message and "failed calling webhook" not in error.message:
                print("the API server asks the webhook, and trusts its certificate")
                return
            sys.exit(f"the API server does not get an answer of the webhook: {error.message}")
        sys.exit("the API server asked no webhook about a claim: see kubectl get validatingwebhookconfigurations")


if __name__ == "__main__":
    asyncio.run(main(in_cluster(), reviewed=sys.argv[1] == "reviewed"))
