"""Builds ResourceClaims: pinned to chosen GPUs or fractions, or without a pin for the scheduler to fill.

The controller calls it. A claim is pinned if its selectors match only the chosen devices. A *fraction* of a GPU is a
share or a MIG slice. The *gang barrier device* has no hardware. While a claim has it, the scheduler does not bind the
claim's pod before the pod's gang starts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from dradriver.allocator.request import Choice, MigPart, Part, PartChoice, SharePart, Whole
from dradriver.api.base import gang_barrier_device, names
from dradriver.api.base.allocating_driver import current_ledger
from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Pod
from dradriver.api.claims import gang_plan_note, opaque_config, preemption_note
from dradriver.api.claims.gang_plan_note import Planned
from dradriver.api.claims.preemption_note import Preempts
from dradriver.api.vocabulary import annotation_words
from dradriver.api.vocabulary.values import NCCL_AUTO
from dradriver.topology.vendors import NVIDIA

_SET = msgspec.json.Decoder(Whole)
_CHOICE: msgspec.json.Decoder[Choice | PartChoice] = msgspec.json.Decoder(Choice | PartChoice)


def pinned(
    pod: Pod,
    choice: Choice | PartChoice,
    *,
    uuids: Mapping[str, Sequence[str]],
    addresses: Mapping[str, str] = MappingProxyType({}),
    compute: Mapping[str, int] = MappingProxyType({}),
    placed: Collection[str] = (),
    keep_env: Sequence[str] = (),
    nccl: str = NCCL_AUTO,
    shared: Whole | None = None,
    planned: Planned | None = None,
    seat: bool = False,
    other_requests: Collection[str] = (),
    preempting: Preempts | None = None,
    vendor: str = NVIDIA.word,
) -> dict[str, Any]:
    """Build the ResourceClaim of a pod, with ``exactly`` requests that are pinned to the chosen GPUs.

    The kubelet gives each container the CDI devices of the container's own requests. So each container has one request
    for its whole GPUs or its share, and one for each of its MIG slices. All requests are pinned, so the scheduler has
    nothing to search.

    Args:
        pod: The pod that will own the claim. Its spec has the claim's name.
        choice: The chosen GPUs or fractions.
        uuids: The uuids of the chosen GPUs, by the name of the claim's request. A request for whole GPUs has several,
            in the order of ``choice.containers``. A request for a fraction has the uuid of one GPU.
        addresses: The PCI addresses of the chosen GPUs, by uuid. Needed only if the allocating driver identifies GPUs
            by address.
        compute: How many compute slices an instance of a MIG profile has, by the profile's name.
        placed: Uuids of the GPUs of which each possible MIG slice is published as a device (a *placement*).
        keep_env: The author's environment variables that no CDI edit may replace.
        nccl: The value of the pod's annotation ``nccl``: ``auto``, ``file``, ``env``, ``near-nics`` or ``off``.
        shared: The request for a set of GPUs that several pods will share; None if only this pod uses the claim.
        planned: The plan with the places of all pods of the gang, which the claim gets as an annotation; None for a pod
            without a gang.
        seat: Whether the claim also requests a gang barrier device. The scheduler allocates this device with the GPUs,
            and binds the pod only when the whole gang starts.
        other_requests: Names of requests that the claim's template adds. The request for the gang barrier device must
            have another name.
        preempting: The pods that must end first, which the claim gets as an annotation; None if no pod is preempted.
        vendor: The GPUs' vendor.
    """
    parts = parts_of(choice, uuids)  # the fraction of each request, by the request's name; empty for whole GPUs

    # MIG instances that the node agent must create. A fraction has one GPU, so ``uuids[name]`` has one entry. Slices
    # that are devices of their own are named by the selector instead.
    mig = {
        name: opaque_config.Mig(profile=part.profile, starts={uuids[name][0]: part.start})
        for name, part in parts.items()
        if isinstance(part, MigPart) and uuids[name][0] not in placed
    }
    uuids_in_order = {name: list(uuids_of_request) for name, uuids_of_request in uuids.items()}
    opaque = opaque_config.make(order=uuids_in_order, keep_env=list(keep_env), nccl=nccl, mig=mig)

    def gpu_request(name: str, uuids_of_request: Sequence[str]) -> dict[str, Any]:
        part = parts.get(name)  # None for whole GPUs
        selector = _device_selector(part, uuids_of_request, addresses, placed)
        exactly = {
            "deviceClassName": _device_class(part, vendor),
            "allocationMode": "ExactCount",
            "count": len(uuids_of_request),
            "selectors": [{"cel": {"expression": selector}}],
        }
        return {"name": name, "exactly": exactly | _capacity_requests(part, compute)}

    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": _metadata(pod, names.LABEL_PLACED, shared=shared is not None)
        | {
            "annotations": {names.CHOICE: msgspec.json.encode(choice).decode()}
            | ({} if planned is None else {names.PLAN: gang_plan_note.written(planned)})
            | ({} if preempting is None else {names.PREEMPTS: preemption_note.written(preempting)})
            | ({} if shared is None else {names.SET: msgspec.json.encode(annotation_words.as_written(shared)).decode()})
        },
        "spec": {
            "devices": {
                "requests": [gpu_request(name, uuids_of_request) for name, uuids_of_request in uuids.items()]
                + ([gang_barrier_device.request(beside={*uuids, *other_requests})] if seat else []),
                # Always for this driver, even if another driver allocates the GPUs: a driver ignores configuration for
                # others, but refuses configuration for itself that it cannot read.
                "config": [{"opaque": {"driver": names.DRIVER, "parameters": opaque}}],
            }
        },
    }


def handed_over(pod: Pod, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Build the ResourceClaim of a pod for which the scheduler chooses the GPUs; it pins no GPU.

    If the controller finds no place for a pod and the pod's annotations allow it, the scheduler looks for one.

    Args:
        pod: The pod that will own the claim. Its spec has the claim's name.
        spec: The spec of the claim.
    """
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": _metadata(pod, names.LABEL_HANDED_OVER) | {"annotations": {names.HANDED_OVER: digest(spec)}},
        "spec": spec,
    }


def digest(spec: Mapping[str, Any]) -> str:
    """Return a digest of the spec of a claim, before the server adds defaults.

    The controller stores the digest as an annotation of the claim. With it, the controller can later tell from which
    spec the claim was built.
    """
    return hashlib.sha256(msgspec.json.encode(spec)).hexdigest()[:16]


def owner(pod: str, uid: str) -> dict[str, Any]:
    """Return the owner reference by which a claim belongs to a pod; a shared claim has several.

    Args:
        pod: The pod's name.
        uid: The pod's uid.
    """
    return {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}


def _metadata(pod: Pod, label: str, *, shared: bool = False) -> dict[str, Any]:
    """Return the metadata of a pod's claim.

    If one pod uses the claim, the pod is its controller in the owner reference. Only then does Kubernetes delete the
    claim when the pod has finished. A shared claim must outlive each of its pods. So none of its owners is marked as
    controller, and the driver's controller deletes it.

    The finalizer is the one of Kubernetes. Without it, the scheduler adds it in a separate write before it allocates
    the claim. So setting it here saves the API server one write for each pod. kube-controller-manager removes it from
    deleted claims that are not in use.

    Args:
        pod: The pod that will use the claim.
        label: The value of the claim's label ``names.LABEL``.
        shared: Whether several pods share the claim.
    """
    assert pod.claim_name is not None, "the webhook names the claim before the pod is gated"
    mine = owner(pod.metadata.name, pod.metadata.uid)
    return {
        "name": pod.claim_name,
        "namespace": pod.metadata.namespace,
        "labels": {names.LABEL: label},
        "finalizers": [names.FINALIZER],
        "ownerReferences": [mine if shared else mine | {"controller": True}],
    }


def parts_of(choice: Choice | PartChoice, requests: Mapping[str, object]) -> dict[str, Part]:
    """Return the share or MIG slice of each of a claim's ``requests``, by name.

    The requests are in the order of the chosen fractions. Empty if whole GPUs were chosen.

    Raises:
        ValueError: The number of requests differs from the number of fractions.
    """
    if isinstance(choice, Choice):
        return {}
    return dict(zip(requests, (part for parts in choice.containers for part in parts), strict=True))


def _device_class(part: Part | None, vendor: str) -> str:
    if part is None:
        return current_ledger().class_of(vendor)
    return names.SHARE_CLASS if isinstance(part, SharePart) else names.MIG_CLASS


def _capacity_requests(part: Part | None, compute: Mapping[str, int]) -> dict[str, Any]:
    """Return the ``capacity`` field of a request for a share or MIG slice; empty for a whole GPU.

    The field names every capacity of the device: a request gets the whole of a capacity that it does not name. If each
    possible MIG slice is published as a device, the amounts are the least that this device must have.

    Args:
        part: The share or MIG slice; None for a whole GPU.
        compute: How many compute slices an instance of a MIG profile has, by the profile's name.
    """
    if part is None:
        return {}
    if isinstance(part, SharePart):
        cores, memory = part.amount.cores, part.amount.memory_mib
        return {"capacity": {"requests": {names.CAPACITY_CORES: str(cores), names.CAPACITY_MEMORY: f"{memory}Mi"}}}
    slices = {names.CAPACITY_MEMORY_SLICES: part.size, names.CAPACITY_COMPUTE_SLICES: compute[part.profile]}
    return {"capacity": {"requests": {name: str(number) for name, number in slices.items()}}}


def _device_selector(
    part: Part | None, uuids: Sequence[str], addresses: Mapping[str, str], placed: Collection[str]
) -> str:
    if isinstance(part, MigPart) and uuids[0] in placed:
        return placement_selector(uuids[0], part)
    if current_ledger().by_address:
        return address_selector([addresses[uuid] for uuid in uuids])
    return uuid_selector(uuids)


def placement_selector(uuid: str, part: MigPart) -> str:
    """Return the CEL selector of one MIG placement on the GPU with this uuid.

    A placement is a MIG profile with its first memory slice, published as a device.
    """
    of = f'device.attributes["{current_ledger().attribute_domain}"]'
    parent, profile = (json.dumps(text, ensure_ascii=True) for text in (uuid, part.profile))
    return (
        f'{of}.?parentUUID.orValue("") == {parent} && {of}.?profile.orValue("") == {profile} && '
        f"{of}.?placement.orValue(-1) == {part.start}"
    )


def uuid_selector(uuids: Sequence[str]) -> str:
    """Return the CEL selector of exactly the devices with these uuids.

    JSON strings are valid CEL strings, so no text can break out of its quotes. For a device without a uuid the selector
    is false. An error instead would stop the scheduling of the pod.
    """
    return _identity_in(uuids)


def address_selector(addresses: Sequence[str]) -> str:
    """Return the CEL selector of exactly the whole GPUs at these PCI addresses.

    The selector also checks the type, because partitions of a GPU have the GPU's address.
    """
    ledger = current_ledger()
    of, kind = f'device.attributes["{ledger.attribute_domain}"]', json.dumps(ledger.gpu_type)
    return f'{of}.?type.orValue("") == {kind} && {_identity_in(addresses)}'


def _identity_in(identities: Sequence[str]) -> str:
    domain, name = current_ledger().identity.rsplit("/", 1)
    listed = json.dumps(sorted(identities), ensure_ascii=True)
    return f'device.attributes["{domain}"].?{name}.orValue("") in {listed}'


def read_set(text: str) -> Whole | None:
    """Return the request that a shared claim's annotation stores; None if the annotation is not valid.

    Args:
        text: The text of the annotation.
    """
    try:
        return _SET.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def read_choice(claim: ResourceClaim) -> Choice | PartChoice | None:
    """Return the GPUs or fractions that the controller chose, from the annotation of its claim.

    None for a claim that this driver's controller did not pin.

    Raises:
        WordError: The annotation was damaged.
    """
    text = claim.metadata.annotations.get(names.CHOICE)
    if text is None or claim.metadata.labels.get(names.LABEL) != names.LABEL_PLACED:
        return None
    try:
        return _CHOICE.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise WordError(
            f"The annotation {names.CHOICE} of claim {claim.metadata.name} is not valid: {error} Delete this claim."
        ) from None
