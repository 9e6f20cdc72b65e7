"""Control planes without nodes that tests share: one is started on first use, and what a test made there is deleted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, TypedDict

from dradriver.kube.resources import Resource
from tests import needs
from tests.cluster.api import Api
from tests.cluster.nodeless import Nodeless
from tests.cluster.settings import kubernetes_version, minor_of
from tests.cluster.waiting import wait_for

GONE_S: Final = 60
# A deleted namespace stays for some five seconds, so namespaces are kept for the next test. Events end by themselves.
_KEPT: Final = ("namespaces", "events")
# The controller manager makes these in each namespace, and again if they are deleted.
_OF_NAMESPACES: Final = ("default", "kube-root-ca.crt")


class _Settings(TypedDict, total=False):
    """What a control plane has beside what Kubernetes has by itself."""

    api_server: Mapping[str, str]
    feature_gates: str


# By purpose; every purpose that is not here has none.
_SETTINGS: Final[Mapping[str, _Settings]] = {
    "groups": {
        "api_server": {"runtime-config": "scheduling.k8s.io/v1beta1=true"},
        "feature_gates": "GenericWorkload=true,WorkloadWithJob=true",
    }
}


class Planes:
    """The control planes that run until this object's block ends.

    Args:
        suffix: What follows their names, so that several processes can have their own.
    """

    def __init__(self, suffix: str = "") -> None:
        self._suffix = suffix
        self._running: dict[tuple[str, str], Nodeless] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Planes:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def get(self, purpose: str, version: str = "") -> Nodeless:
        """Return the control plane for a purpose and a Kubernetes version, started if it does not run yet.

        The test is skipped where none can run; in CI it fails.
        """
        version = version or kubernetes_version()
        if (purpose, version) not in self._running:
            needs.real_cluster(version)
            settings = _SETTINGS.get(purpose, {})
            plane = Nodeless(f"{purpose}-{minor_of(version)}{self._suffix}", version, **settings)
            self._stack.enter_context(plane.running())
            self._running[purpose, version] = plane
        return self._running[purpose, version]

    @contextlib.contextmanager
    def restored(self, purpose: str, version: str = "") -> Iterator[Nodeless]:
        """Give the same for a block, and delete afterwards what was made in it."""
        plane = self.get(purpose, version)
        api = plane.api
        before = _stored(api)
        try:
            yield plane
        finally:
            _delete_new(api, before)


class _Stored(NamedTuple):
    """An object that the API server has."""

    resource: Resource
    namespace: str
    name: str
    uid: str


def _delete_new(api: Api, before: set[_Stored]) -> None:
    """Delete every object that is not in ``before``, and return once all are gone.

    Raises:
        ClusterError: Some object stays.
    """

    def new() -> set[_Stored]:
        stored = _stored(api) - before
        for found in stored:
            api.delete(found.resource, found.name, namespace=found.namespace)
        return stored

    wait_for("what tests made is deleted", lambda: not new(), seconds=GONE_S, why=lambda: str(new()))


def _stored(api: Api) -> set[_Stored]:
    """Return every object that can be deleted, but for what the server makes itself."""
    stored = set()
    for served in api.served():
        if {"list", "delete"} <= served.verbs and served.resource.plural not in _KEPT:
            for metadata in (found["metadata"] for found in api.objects(served.resource)):
                namespace = metadata.get("namespace", "")
                made_by_server = namespace.startswith("kube-") or (namespace and metadata["name"] in _OF_NAMESPACES)
                if not made_by_server:
                    stored.add(_Stored(served.resource, namespace, metadata["name"], metadata["uid"]))
    return stored
