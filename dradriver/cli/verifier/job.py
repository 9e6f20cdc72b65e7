"""The Job that checks a node from inside, with the rights and mounts of the node's agent."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.cli.verifier.driver_pods import NODE, arguments, container_of

_HOST: Final = "/host"
_DELETED_AFTER_S: Final = 3600
_NODE_NAME_LENGTH: Final = 32  # characters of a node's name in a Job's, which has 63 at most


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a node's agent that the Job uses, too.

    Attributes:
        image: Its image, which has ``gputopo``.
        account: Its service account, which may read slices.
        driver_root: Root of the file system that has the GPU driver, on the host.
        cdi_root: The folder where the container runtime looks for CDI specifications.
        ledger: The name of the DRA driver that allocates GPUs.
        pull_secrets: The secrets with which its image is pulled.
    """

    image: str
    account: str
    driver_root: str = "/"
    cdi_root: str = "/var/run/cdi"
    allocating_driver: str = names.DRIVER
    pull_secrets: tuple[Mapping[str, Any], ...] = ()


def manifest(node: str, agent: Agent, *, namespace: str) -> dict[str, Any]:
    """Return the Job of ``gputopo verify`` that checks a node from inside.

    Args:
        node: The node's name.
        agent: The settings of the node's agent, or of another node's.
        namespace: The driver's namespace, which has the agent's service account.
    """
    # The hash tells long node names apart that begin alike. The random end lets the user run the check again.
    node_hash = hashlib.sha256(node.encode()).hexdigest()[:6]
    short_node = node.replace(".", "-")[:_NODE_NAME_LENGTH].rstrip("-")
    name = f"gputopo-verify-{short_node}-{node_hash}-{secrets.token_hex(3)}"
    container = {
        "name": "verify",
        "image": agent.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["gputopo"],  # the image's entry point runs modules
        "args": [
            "verify", "--this-machine", node, f"--driver-root={_HOST}{agent.driver_root.rstrip('/')}",
            f"--host-root={_HOST}", f"--cdi-root={agent.cdi_root}", f"--allocating-driver={agent.allocating_driver}",
            f"--driver-namespace={namespace}",
        ],
        # As the node agent: NVML and /sys need the devices and files of the host.
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
        "automountServiceAccountToken": True,  # the ServiceAccount says false; the pod's value counts
        "imagePullSecrets": [dict(secret) for secret in agent.pull_secrets],
        "hostPID": True,
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [{"operator": "Exists"}],  # of all taints: faulty GPUs are why a node is checked
        "containers": [container],
        "volumes": [
            {"name": "host", "hostPath": {"path": "/", "type": "Directory"}},
            {"name": "cdi", "hostPath": {"path": agent.cdi_root, "type": ""}},  # an empty type creates no folder
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"backoffLimit": 0, "ttlSecondsAfterFinished": _DELETED_AFTER_S, "template": {"spec": spec}},
    }


def of_agent(pods: Iterable[Mapping[str, Any]], node: str) -> Agent | None:
    """Return the settings of a node's agent, else of any agent, for the Job.

    The result is None if there is no agent. ``driver_root`` is the path on the host, without the folder in which the
    agent's container has the host's files.
    """
    for pod in sorted(pods, key=lambda pod: pod["spec"].get("nodeName") != node):
        container = container_of(pod, NODE)
        if container is None:
            continue
        options = arguments(container)
        root = options.get("--driver-root", "").removeprefix(_HOST)
        return Agent(
            image=str(container["image"]),
            account=str(pod["spec"].get("serviceAccountName") or "default"),
            driver_root=root or "/",
            cdi_root=options.get("--cdi-root") or "/var/run/cdi",
            allocating_driver=options.get("--allocating-driver") or names.DRIVER,
            pull_secrets=tuple(pod["spec"].get("imagePullSecrets") or ()),
        )
    return None
