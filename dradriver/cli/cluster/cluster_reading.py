"""Reading of lists of objects from the API server of the user's cluster, with error messages for the user."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from dradriver.api.base import names
from dradriver.api.base.allocating_driver import OTHERS, OURS, Ledger
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.errors import DriverError
from dradriver.kube import codec
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dradriver.view.terminal_text import plain

if TYPE_CHECKING:
    from dradriver.api.claims.pins import Claim

T = TypeVar("T")

_BOTH: Final = (RESOURCE_SLICES, RESOURCE_CLAIMS)  # whoever asks for one of them needs the other, too


class ClusterError(DriverError):
    """The cluster cannot be shown. The message tells the user what to check."""

    reason = "ClusterNotShown"

    def __init__(self, message: str) -> None:
        super().__init__(plain(message))  # what a server answers may have line ends


async def read(client: Client, server: ServerConfig) -> tuple[list[ResourceSlice], list[Claim]]:
    """Return the ResourceSlices of the drivers that matter, and all claims of the cluster.

    These are the slices of this driver. If they describe only machines, without devices, another driver allocates the
    GPUs. Then that driver's slices follow.

    Args:
        client: The API server's client, inside its ``async with`` block.
        server: The server, for messages.

    Raises:
        ClusterError: The server does not answer or refuses.
    """
    from dradriver.api.slices.resource_slices import is_machine_alone  # here: explain says its first words without it

    slices = await listed(client, server, RESOURCE_SLICES, ResourceSlice, field_selector=of_driver(OURS))
    # The slice with gang barrier devices belongs to no node.
    slices = [piece for piece in slices if not names.is_seat(piece.spec.driver, piece.spec.pool.name)]
    claims = await listed(client, server, RESOURCE_CLAIMS, read_claim)
    # Slices with a machine and no devices: another driver allocates the GPUs. ``whose`` finds out which.
    if machine_pools := {
        resource_slice.spec.pool.name for resource_slice in slices if is_machine_alone(resource_slice)
    }:
        slices_of_driver = {
            driver: await listed(client, server, RESOURCE_SLICES, ResourceSlice, field_selector=of_driver(driver))
            for driver in OTHERS
        }
        pools_of_driver = {
            driver: [resource_slice.spec.pool.name for resource_slice in driver_slices]
            for driver, driver_slices in slices_of_driver.items()
        }
        slices += slices_of_driver[whose(machine_pools, pools_of_driver)]
    return slices, claims


def whose(alone: Collection[str], pools: Mapping[Ledger, Collection[str]]) -> Ledger:
    """Return the other driver that allocates GPUs in the cluster: it has devices on the most machines.

    Only machines that this driver's node agent publishes without devices are counted. If no driver has devices on these
    nodes, the result is NVIDIA's driver.

    Args:
        alone: The pools that have a machine and no devices.
        pools: By driver, the pools of its slices.
    """
    return max(OTHERS, key=lambda one: len(set(alone).intersection(pools.get(one, ()))))


def of_driver(ledger: Ledger) -> str:
    """Return the field selector that lists the ResourceSlices of the driver ``ledger``."""
    return f"spec.driver={ledger.driver}"


def read_claim(data: msgspec.Raw) -> Claim:
    """Read the fields of a claim that commands need.

    Raises:
        PartlyRead: Only some fields of the claim can be read; the exception has them.
        BadJson: The data is no claim.
    """
    from dradriver.api.claims.pins import Claim  # here: explain says its first words without it

    claim: Claim = codec.decode_part(data, Claim, lambda read: read)
    return claim


def nothing_published(server: ServerConfig) -> str:
    """Return a hint for the user of a cluster in which the caller found no slice of this driver."""
    return (
        f"the cluster at {server.url} has no ResourceSlice of driver {names.DRIVER}. Check that this is the right "
        "cluster: kubectl config current-context. If it is, no node agent has published its GPUs. Read the logs "
        "of the agents' pods: kubectl get pods -A -l app.kubernetes.io/component=node"
    )


async def listed(
    client: Client,
    server: ServerConfig,
    resource: Resource,
    kind: codec.Reading[T],
    *,
    namespace: str | None = None,
    label_selector: str | None = None,
    field_selector: str | None = None,
) -> list[T]:
    """Read all objects of a kind from a cluster's API server, as ``Client.list`` does.

    Args:
        client: The API server's client, inside its ``async with`` block.
        server: The server, for messages.
        resource: The kind of objects.
        kind: The type to read each object as, or a function that reads it.
        namespace: The only namespace to list; None for all.
        label_selector: Selects objects by labels.
        field_selector: Selects objects by fields.

    Raises:
        ClusterError: The server does not answer or refuses. The message names the right that the user lacks.
    """
    try:
        # The second value is the list's resourceVersion, which only a watch needs.
        objects, _ = await client.list(
            resource,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            type=kind,
        )
    except (ApiError, Unreachable) as error:
        raise refused(error, server, resource, namespace=namespace) from error
    return objects


def refused(
    error: ApiError | Unreachable, server: ServerConfig, resource: Resource, *, namespace: str | None = None
) -> ClusterError:
    """Return the error for a list that the API server refused or did not answer, with advice.

    Args:
        error: The error that the client raised.
        server: The server.
        resource: The kind of objects that was listed.
        namespace: The namespace that was listed; None for all namespaces.
    """
    if isinstance(error, Unreachable):
        return ClusterError(
            f"{server.url}: the API server gave no usable answer: {error}. Check that it runs, and that this is "
            "the right context (--context NAME). List the contexts: kubectl config get-contexts"
        )
    return ClusterError(f"{server.url}: {_cure(error, resource, namespace)}")


def _cure(error: ApiError, resource: Resource, namespace: str | None) -> str:
    what = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    if error.forbidden and "cannot watch" in error.message:  # as the API server's authorizer puts it
        where = "in all namespaces" if namespace is None else f"in namespace {namespace}"
        return f"you may not watch {what} {where}. Ask for the verb watch on them. The API server says: {error.message}"
    if error.forbidden and namespace is not None:
        return (
            f"you may not read {what} in namespace {namespace}. Ask for the verbs get and "
            f"list. The API server says: {error.message}"
        )
    if error.forbidden:
        wanted = what if resource not in _BOTH else ",".join(f"{kind.plural}.{kind.group}" for kind in _BOTH)
        return (
            f"you may not list {what} in all namespaces. Ask for the verb list on them: kubectl create "
            f"clusterrole gputopo --verb=list --resource={wanted}. Then ask for a ClusterRoleBinding to you. The "
            f"API server says: {error.message}"
        )
    if error.status == 401:
        return f"your credentials are refused: log in again, or name another context with --context ({error.message})"
    if error.not_found:
        return (
            f"the API server does not serve {resource.api_version} {resource.plural}. The "
            "driver needs Kubernetes 1.34 or newer."
        )
    return str(error)
