"""The Job that looks at a node from inside, with the rights and mounts of the node's agent."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.cli.verifier.driver_pods import NODE, arguments, container_of

_HOST: Final = "/host"
_ENDS_S: Final = 3600
_OF_NODE: Final = 32  # characters of a node's name in a Job's, which has 63 at most


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """What the Job has of a node's agent.

    Attributes:
        image: Its image, which has ``gputopo``.
        account: Its service account, which may read slices.
        driver_root: Root of the file system that holds the driver, on the host.
        cdi_root: Where the container runtime looks for CDI specifications.
        ledger: The driver whose devices are handed out.
        pull_secrets: With what its image is pulled.
    """

    image: str
    account: str
    driver_root: str = "/"
    cdi_root: str = "/var/run/cdi"
    ledger: str = names.DRIVER
    pull_secrets: tuple[Mapping[str, Any], ...] = ()


def manifest(node: str, agent: Agent, *, namespace: str) -> dict[str, Any]:
    """Return the Job that checks a node from inside. Each has another name, so that it runs again.

    Args:
        node: The node.
        agent: Its agent, or another's.
        namespace: The driver's, where that has its account.
    """
    own = hashlib.sha256(node.encode()).hexdigest()[:6]  # long names may begin alike
    name = f"gputopo-verify-{node.replace('.', '-')[:_OF_NODE].rstrip('-')}-{own}-{secrets.token_hex(3)}"
    container = {
        "name": "verify",
        "image": agent.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["gputopo"],  # the image's entry point runs modules
        "args": [
            "verify", "--this-machine", node, f"--driver-root={_HOST}{agent.driver_root.rstrip('/')}",
            f"--host-root={_HOST}", f"--cdi-root={agent.cdi_root}", f"--ledger={agent.ledger}",
            f"--driver-namespace={namespace}",
        ],
        "securityContext": {"privileged": True, "readOnlyRootFilesystem": True},
        "volumeMounts": [
            {"name": "host", "mountPath": _HOST, "readOnly": True, "mountPropagation": "HostToContainer"},
            {"name": "cdi", "mountPath": agent.cdi_root, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the container's own
        ],
    }  # fmt: skip
    spec = {
        "nodeName": node,
        "restartPolicy": "Never",
        "serviceAccountName": agent.account,
        "automountServiceAccountToken": True,  # the account itself says false
        "imagePullSecrets": [dict(one) for one in agent.pull_secrets],
        "hostPID": True,
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [
            {"name": "host", "hostPath": {"path": "/", "type": "Directory"}},
            {"name": "cdi", "hostPath": {"path": agent.cdi_root, "type": ""}},  # it is looked at, not made
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"backoffLimit": 0, "ttlSecondsAfterFinished": _ENDS_S, "template": {"spec": spec}},
    }


def of_agent(pods: Iterable[Mapping[str, Any]], node: str) -> Agent | None:
    """Return the spec of a node's agent for the Job; of any agent if that node has none, None if there is none.

    The driver's root is that of the host, without the folder below which the agent has the host's files.
    """
    for pod in sorted(pods, key=lambda pod: pod["spec"].get("nodeName") != node):
        container = container_of(pod, NODE)
        if container is None:
            continue
        said = arguments(container)
        root = said.get("--driver-root", "").removeprefix(_HOST)
        return Agent(
            image=str(container["image"]),
            account=str(pod["spec"].get("serviceAccountName") or "default"),
            driver_root=root or "/",
            cdi_root=said.get("--cdi-root") or "/var/run/cdi",
            ledger=said.get("--ledger") or names.DRIVER,
            pull_secrets=tuple(pod["spec"].get("imagePullSecrets") or ()),
        )
    return None
