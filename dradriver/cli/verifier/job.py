"""The Job that looks at a node from inside, with the rights and mounts of the node's agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

_HOST: Final = "/host"
_ENDS_S: Final = 3600
_LONGEST: Final = 63


def manifest(node: str, *, namespace: str, image: str, account: str, driver_root: str = "/") -> dict[str, Any]:
    """Return the Job.

    Args:
        node: The node.
        namespace: The driver's, for its account may read slices.
        image: The agent's, which has ``gputopo``.
        account: The agent's.
        driver_root: Root of the file system that holds the driver, on the host.
    """
    name = f"gputopo-verify-{node}".replace(".", "-")[:_LONGEST].rstrip("-")
    container = {
        "name": "verify",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": [
            "gputopo", "verify", "--this-machine", node, f"--driver-root={_HOST}{driver_root.rstrip('/')}",
            f"--host-root={_HOST}",
        ],
        "securityContext": {"privileged": True, "readOnlyRootFilesystem": True},
        "volumeMounts": [
            {"name": "host", "mountPath": _HOST, "readOnly": True, "mountPropagation": "HostToContainer"},
            {"name": "cdi", "mountPath": "/var/run/cdi", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the container's own
        ],
    }  # fmt: skip
    spec = {
        "nodeName": node,
        "restartPolicy": "Never",
        "serviceAccountName": account,
        "hostPID": True,
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [
            {"name": "host", "hostPath": {"path": "/", "type": "Directory"}},
            {"name": "cdi", "hostPath": {"path": "/var/run/cdi", "type": "DirectoryOrCreate"}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"backoffLimit": 0, "ttlSecondsAfterFinished": _ENDS_S, "template": {"spec": spec}},
    }


def of_agent(pods: Iterable[Mapping[str, Any]], node: str) -> tuple[str, str, str]:
    """Return the image, the account and the driver's root of a node's agent; of any agent where that node has none.

    The root is that of the host, without the folder below which the agent has the host's files.
    """
    found = sorted(pods, key=lambda pod: pod["spec"].get("nodeName") != node)
    for pod in found:
        (container, *_) = pod["spec"]["containers"]
        root = next(
            (
                str(word).partition("=")[2].removeprefix(_HOST)
                for word in container.get("args") or ()
                if str(word).startswith("--driver-root=")
            ),
            "",
        )
        return str(container["image"]), str(pod["spec"].get("serviceAccountName") or "default"), root or "/"
    return "", "", "/"
