"""The claim that pins one chosen set of GPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dradriver.allocator.request import Choice
from dradriver.api import config, names
from dradriver.api.errors import WordError
from dradriver.api.ledger import OURS, Ledger
from dradriver.api.objects import Pod, ResourceClaim
from dradriver.api.values import NCCL_AUTO


def pinned(
    pod: Pod,
    choice: Choice,
    *,
    uuids: Mapping[str, Sequence[str]],
    keep_env: Sequence[str] = (),
    nccl: str = NCCL_AUTO,
    ledger: Ledger = OURS,
) -> dict[str, Any]:
    """Return the claim of a pod: one ``exactly`` request for each GPU container, pinned to the chosen GPUs.

    Each container has a request of its own because the kubelet hands out CDI devices by request; all are pinned, so
    the scheduler has nothing to search. The owner is marked as controller: only then does Kubernetes delete the claim
    of a pod that has finished. The finalizer is Kubernetes' own: the scheduler adds it in a write of its own before it
    allocates a claim, unless it is there already, so a pod costs the API server a write less. The claim controller of
    kube-controller-manager takes it from every claim that is deleted and in nobody's use.

    Args:
        pod: The pod that will own the claim; it names the claim.
        choice: The chosen set.
        uuids: The chosen GPUs by container's name, in the order of ``choice.containers``.
        keep_env: Variables of the author's that no edit may replace.
        nccl: What NCCL is told.
        ledger: Whose devices they are.
    """
    assert pod.claim_name is not None, "the webhook names the claim before the pod is gated"
    opaque = config.make(order={name: list(part) for name, part in uuids.items()}, keep_env=list(keep_env), nccl=nccl)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": pod.claim_name,
            "namespace": pod.metadata.namespace,
            "labels": {names.LABEL: names.LABEL_PLACED},
            "annotations": {names.CHOICE: msgspec.json.encode(choice).decode()},
            "finalizers": [names.FINALIZER],
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": pod.metadata.name,
                    "uid": pod.metadata.uid,
                    "controller": True,
                }
            ],
        },
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": name,
                        "exactly": {
                            "deviceClassName": ledger.device_class,
                            "allocationMode": "ExactCount",
                            "count": len(part),
                            "selectors": [{"cel": {"expression": uuid_selector(part, ledger)}}],
                        },
                    }
                    for name, part in uuids.items()
                ],
                "config": [{"opaque": {"driver": ledger.driver, "parameters": opaque}}],
            }
        },
    }


def uuid_selector(uuids: Sequence[str], ledger: Ledger = OURS) -> str:
    """Return a CEL expression that holds for exactly the devices with these uuids.

    JSON strings are valid CEL strings, so no text can break out of its quotes. A device without the attribute answers
    false instead of aborting the scheduling of the pod.
    """
    listed = json.dumps(sorted(uuids), ensure_ascii=True)
    return f'device.attributes["{ledger.attribute_domain}"].?{ledger.uuid_attribute}.orValue("") in {listed}'


def read_choice(claim: ResourceClaim) -> Choice | None:
    """Return the choice that a claim of ours was made from; None where the claim is not ours.

    Raises:
        WordError: The annotation was damaged.
    """
    text = claim.metadata.annotations.get(names.CHOICE)
    if text is None or claim.metadata.labels.get(names.LABEL) != names.LABEL_PLACED:
        return None
    try:
        return msgspec.json.decode(text, type=Choice)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise WordError(f"{names.CHOICE} of claim {claim.metadata.name}: {error}; delete this claim") from None
