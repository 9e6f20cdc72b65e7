"""What the view is made from, read once from the API server."""

from __future__ import annotations

from typing import TypeVar

from dradriver import __version__
from dradriver.api import names
from dradriver.api.ledger import NVIDIA
from dradriver.api.objects import ResourceSlice
from dradriver.api.pins import Claim
from dradriver.cli.cluster import addon
from dradriver.cli.render.plain import plain
from dradriver.errors import DriverError
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES, Resource

T = TypeVar("T")


class ClusterError(DriverError):
    """The cluster cannot be shown; the message says what to look at."""

    reason = "ClusterNotShown"

    def __init__(self, message: str) -> None:
        super().__init__(plain(message))  # what a server answers may have line ends


async def read(server: ServerConfig) -> tuple[list[ResourceSlice], list[Claim]]:
    """Return this driver's slices and all claims; what NVIDIA's driver hands out beside us looks as if it were ours.

    Raises:
        ClusterError: The server does not answer or refuses, or there is no slice of this driver.
        ConfigError: The credentials are no usable ones.
    """
    async with Client(server, user_agent=f"gputopo/{__version__}") as client:
        selector = f"spec.driver={names.DRIVER}"
        slices = await _list(client, server, RESOURCE_SLICES, ResourceSlice, field_selector=selector)
        if not slices:
            raise ClusterError(
                f"{server.url}: no ResourceSlice of driver {names.DRIVER}: either this is another cluster than you "
                "mean (kubectl config current-context), or no node agent has published its GPUs; look at "
                "kubectl get pods -A -l app.kubernetes.io/component=node, and at the logs of these pods"
            )
        claims = await _list(client, server, RESOURCE_CLAIMS, Claim)
        if all(piece.spec.devices for piece in slices):
            return slices, claims
        selector = f"spec.driver={NVIDIA.driver}"
        theirs = await _list(client, server, RESOURCE_SLICES, ResourceSlice, field_selector=selector)
        return addon.as_ours(slices, theirs, claims, NVIDIA)


async def _list(
    client: Client, server: ServerConfig, resource: Resource, kind: type[T], *, field_selector: str | None = None
) -> list[T]:
    try:
        return (await client.list(resource, field_selector=field_selector, type=kind))[0]
    except Unreachable as error:
        raise ClusterError(
            f"{server.url}: no usable answer: {error}; is the API server up, and is this the right context "
            "(--context NAME; kubectl config get-contexts)?"
        ) from error
    except ApiError as error:
        raise ClusterError(f"{server.url}: {_cure(error, resource)}") from error


def _cure(error: ApiError, resource: Resource) -> str:
    what = f"{resource.plural}.{resource.group}"
    if error.forbidden:
        return (
            f"you may not list {what} in all namespaces; ask for the verb list on them: kubectl create clusterrole "
            f"gputopo --verb=list --resource=resourceslices.{resource.group},resourceclaims.{resource.group}, bound to "
            f"you by a ClusterRoleBinding ({error.message})"
        )
    if error.status == 401:
        return f"your credentials are refused: log in again, or name another context with --context ({error.message})"
    if error.not_found:
        return f"it does not serve {resource.api_version} {resource.plural}; Kubernetes 1.34 or newer does"
    return str(error)
