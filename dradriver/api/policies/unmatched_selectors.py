"""Finds the caps and partitions of tenants that select no GPU of the cluster, often because of a misspelt name.

A *cap* limits how many GPUs a tenant may have at the same time. A *partition* has the GPUs that its workloads may use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from dradriver.api.policies.fields import Gpus
from dradriver.api.policies.gpu_modes import fits, on_node
from dradriver.api.policies.tenant_policies import Tenant
from dradriver.counted import first_of
from dradriver.topology.machine import Gpu

_MOST_NAMED: Final = 8  # names in a message


class NodeGpus(NamedTuple):
    """The GPUs of a node, with what a selector of GPUs reads."""

    name: str
    labels: Mapping[str, str]
    gpus: Sequence[Gpu]


def unmatched(tenants: Mapping[str, Tenant], nodes: Iterable[NodeGpus]) -> dict[str, list[str]]:
    """Return a message for each cap and partition that selects no GPU, by the name of the tenant.

    Tenants without such a cap or partition are left out. The result is empty if the cluster has no GPUs.

    Args:
        tenants: The tenants of the policies file.
        nodes: All nodes of the cluster with their GPUs.
    """
    if not any(tenant.cap or tenant.partition for tenant in tenants.values()):
        return {}  # the GPUs of a large cluster need not be read
    known = [node for node in nodes if node.gpus]
    products = sorted({gpu.product for node in known for gpu in node.gpus})
    if not products:
        return {}
    messages = {name: list(_messages(name, tenant, known, products)) for name, tenant in tenants.items()}
    return {name: texts for name, texts in messages.items() if texts}


def _messages(name: str, tenant: Tenant, nodes: Sequence[NodeGpus], products: Sequence[str]) -> Iterator[str]:
    cluster_has = f"The cluster has {_some(products)}."
    for i, cap in enumerate(tenant.cap):
        # Caps count by the product alone (``queue.caps``), partitions also by other names of the GPU.
        if cap.products and not any(fnmatchcase(product, each) for product in products for each in cap.products):
            place = f"tenants.{name}.cap[{i}].products"
            yield f"{place}: no GPU of the cluster matches {_some(cap.products)}. {cluster_has}"
    if tenant.partition is not None and not any(_is_matched(tenant.partition, node) for node in nodes):
        place = f"tenants.{name}.partition"
        yield f"{place}: no GPU of the cluster matches {_selector(tenant.partition)}. {cluster_has}"


def _is_matched(selector: Gpus, node: NodeGpus) -> bool:
    """Return whether a selector matches a GPU of a node; True if that is unknown."""
    return on_node(selector, node.name, node.labels) and any(
        fits(selector, node.name, node.labels, gpu) is not False for gpu in node.gpus
    )


def _selector(selector: Gpus) -> str:
    """Return a selector as it is in the policies file, on one line."""
    labels = [f"{key}: {value}" for key, value in selector.node_selector.items()]
    fields = {
        "nodes": selector.nodes,
        "nodeSelector": labels,
        "products": selector.products,
        "numbers": [str(number) for number in selector.numbers],
        "uuids": selector.uuids,
        "pciAddresses": selector.pci_addresses,
    }
    return ", ".join(
        f"{field}: {{{_some(texts)}}}" if field == "nodeSelector" else f"{field}: [{_some(texts)}]"
        for field, texts in fields.items()
        if texts
    )


def _some(texts: Sequence[str]) -> str:
    return first_of(texts, _MOST_NAMED)
