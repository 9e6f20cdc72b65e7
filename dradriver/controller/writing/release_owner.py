"""Finds the chart's object that owns the controller's objects, so that an uninstallation deletes both."""

from __future__ import annotations

from dradriver.kube.client import ApiError, Client
from dradriver.kube.resources import CLUSTER_ROLES


class ReleaseOwner:
    """Reads the owner of the controller's objects: its ClusterRole.

    Every installation has it. It is in no namespace, so it can own objects of all namespaces.
    """

    def __init__(self, client: Client, cluster_role: str = "") -> None:
        """Make a reader; ``cluster_role`` is the ClusterRole's name, empty for no owner."""
        self._client = client
        self._cluster_role = cluster_role

    async def references(self) -> list[dict[str, str]]:
        """Return the ``ownerReferences`` for a new object; empty if there is no ClusterRole.

        The ClusterRole's uid is read each time: if an object's owner no longer exists, Kubernetes deletes the object at
        once.

        Raises:
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        if not self._cluster_role:
            return []
        try:
            cluster_role = await self._client.get(CLUSTER_ROLES, self._cluster_role)
        except ApiError as error:
            if error.not_found:
                return []
            raise
        return [
            {
                "apiVersion": CLUSTER_ROLES.api_version,
                "kind": CLUSTER_ROLES.kind,
                "name": self._cluster_role,
                "uid": cluster_role["metadata"]["uid"],
            }
        ]
