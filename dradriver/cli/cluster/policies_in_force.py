"""The policies that the driver in a cluster follows, for every command that decides as the driver does.

The chart writes the policies into a ConfigMap of its namespace. All commands read them here, so all decide by the same
policies. The chart always renders this ConfigMap. If it is absent, the namespace is not the driver's, or an
administrator deleted the ConfigMap. Every command reports this, even if the cluster may have no driver: a user who may
not read all namespaces cannot tell such a cluster from one with the driver in another namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.api.policies.policy_sections import UNKNOWN, Policies
from dradriver.cli.cluster import cluster_reading
from dradriver.cli.cluster.cluster_reading import ClusterError
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import CONFIG_MAPS, MUTATING_WEBHOOKS
from dradriver.reason import sentences
from dradriver.view.terminal_text import plain

NAMESPACE: Final = "gpu-topology"  # where docs/start/install.md installs the chart

# The labels of the chart's objects that do not depend on the release's name.
_LABELS: Final = {"app.kubernetes.io/component": "policies", "app.kubernetes.io/part-of": "gpu-topology"}
_RELEASE: Final = "app.kubernetes.io/instance"
_WEBHOOK: Final = _LABELS | {"app.kubernetes.io/component": "webhook"}


class InForce(msgspec.Struct, frozen=True):
    """Policies, and whether the driver follows them.

    Attributes:
        policies: The policies to decide by. ``UNKNOWN``, which has the defaults, if those in force are not found or
            cannot be read.
        trouble: Why they are not found or cannot be read, and what the user can do. Empty if nothing is wrong. Safe to
            print.
        error: What is wrong in the text of the policies file; empty if it is valid or was not read. Safe to print.
        release: The name of the Helm release that has the policies file; empty if it is not known. Safe to print.
    """

    policies: Policies
    trouble: str = ""
    error: str = ""
    release: str = ""


async def driver_namespace(client: Client, name: str | None) -> str:
    """Return the namespace where the driver is installed; its policies in force are there.

    ``name`` is the namespace that the user named. If it is None, the namespace is looked for (``locate``).
    """
    namespace, _ = await locate(client, name)
    return namespace


async def locate(client: Client, name: str | None) -> tuple[str, bool]:
    """Return the namespace where the driver is installed, and whether that is certain.

    Without ``name`` the function reads webhook configurations, which only administrators write. So users cannot lead it
    into a namespace of theirs.

    Args:
        client: The API server's client.
        name: The namespace that the user named. Without it the namespace of the driver's webhook is returned. If there
            is no webhook, or the user may not read it, the result is ``NAMESPACE``, where the installation guide
            installs the chart. The result is not certain if the user may not read webhook configurations, or if they
            name several namespaces.
    """
    if name:
        return name, True
    try:
        configurations: list[dict[str, Any]]
        configurations, _ = await client.list(MUTATING_WEBHOOKS, label_selector=_selector(_WEBHOOK))
    except (ApiError, Unreachable):
        return NAMESPACE, False
    # The namespaces of the services that these webhooks are served by.
    namespaces = {
        str(service["namespace"])
        for configuration in configurations
        for hook in configuration.get("webhooks") or ()
        if (service := (hook.get("clientConfig") or {}).get("service"))
    }
    namespace = NAMESPACE if NAMESPACE in namespaces or not namespaces else min(namespaces)
    return namespace, len(namespaces) < 2


async def read(client: Client, server: ServerConfig, name: str | None, file: Policies | None = None) -> InForce:
    """Return the policies in force: the policies that the driver follows, or the policies of the user's file.

    Args:
        client: The API server's client.
        server: The API server, for messages.
        name: The namespace where the driver is installed, if it is known; else ``driver_namespace`` finds it.
        file: The policies that the user gave by ``--policies``. If given, the cluster is not asked.
    """
    if file is not None:
        return InForce(file)
    namespace = await driver_namespace(client, name)
    try:
        config_maps: list[dict[str, Any]] = await cluster_reading.listed(
            client, server, CONFIG_MAPS, dict, namespace=namespace, label_selector=_selector(_LABELS)
        )
    except ClusterError as error:
        return unread(error)
    return among(config_maps, namespace)


def among(config_maps: Iterable[Mapping[str, Any]], namespace: str) -> InForce:
    """Return the policies in force, from the chart's ConfigMap among some ConfigMaps.

    Args:
        config_maps: ConfigMaps of the namespace. If none of them is the chart's, the policies are unknown, and
            ``trouble`` says why.
        namespace: The namespace where the driver is installed, or is guessed to be.
    """
    for config_map in config_maps:
        metadata, data = config_map.get("metadata"), config_map.get("data")
        if not isinstance(metadata, Mapping) or not isinstance(data, Mapping):
            continue
        labels = metadata.get("labels")
        if not isinstance(labels, Mapping) or not labels.items() >= _LABELS.items():
            continue
        if isinstance(text := data.get(names.POLICIES_KEY), str):
            source = f"{names.POLICIES_KEY} of ConfigMap {metadata.get('namespace')}/{metadata.get('name')}"
            return msgspec.structs.replace(_parsed(text, source), release=plain(str(labels.get(_RELEASE, ""))))
    why = f"namespace {namespace} has no policies ConfigMap of the chart"
    return _unknown(why, "name the driver's namespace with --driver-namespace NAME")


def unread(error: ClusterError) -> InForce:
    """Return unknown policies, with a message on ``error``: the ConfigMaps cannot be read."""
    cause = error.__cause__
    may_not = isinstance(cause, ApiError) and cause.forbidden
    cure = "ask to be named in the chart's value viewer.subjects, which gives that right"
    return _unknown(str(error), cure if may_not else "try again later")


def _parsed(text: str, source: str) -> InForce:
    from dradriver.api.policies.policies_reader import PoliciesError, read  # here, because it loads yaml

    try:
        return InForce(read(text.encode("utf-8", "replace"), source=source))
    except PoliciesError as error:
        says = plain(error.by_key(source))
        unread = _unknown(
            sentences(says, "The controller keeps the last valid file."), "correct the chart's value policies"
        )
        return msgspec.structs.replace(unread, error=says)


def _unknown(why: str, cure: str) -> InForce:
    warning = f"what is shown follows the default policies, because the policies in force cannot be read: {why}"
    return InForce(UNKNOWN, plain(sentences(warning, f"Give them with --policies FILE, or {cure}.")))


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())
