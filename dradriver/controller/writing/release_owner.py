"""The object of the chart that owns what the controller creates: an uninstallation deletes both."""

from __future__ import annotations

from dradriver.kube.client import ApiError, Client
from dradriver.kube.resources import CLUSTER_ROLES


class ReleaseOwner:
    """Reads the owner: the controller's ClusterRole, which is in each installation and in no namespace."""

    def __init__(self, client: Client, cluster_role: str = "") -> None:
        """``cluster_role`` is the ClusterRole's name; empty for no owner."""
        self._client = client
        self._cluster_role = cluster_role

    async def references(self) -> list[dict[str, str]]:
        """Return the ``ownerReferences`` of an object that is created now; empty if there is no ClusterRole.

        The uid is read each time: Kubernetes deletes an object at once whose owner no longer exists.

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
