"""The webhook: whether the API server asks it, by a pod that is never created, and when its certificates end."""

from __future__ import annotations

import base64
import binascii
import ssl
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from dradriver.api.base import names
from dradriver.cli.verifier.finding import Finding, failed, passed, warned
from dradriver.kube.client import ApiError, Client
from dradriver.kube.resources import PODS

_SOON_S: Final = 30 * 86_400.0
_DENIED: Final = "denied the request"
_BAD: Final = "no-version"


async def check_with_bad_pod(client: Client, namespace: str) -> Finding:
    """Return the finding of the webhook checks whether the API server asks the webhook about pods of a namespace.

    A pod that the webhook must refuse is created as a dry run.

    Raises:
        Unreachable: The API server does not answer.
    """
    # ``_BAD`` is no driver version: the webhook refuses the annotation. The image is never pulled.
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "gputopo-verify-", "namespace": namespace, "annotations": {names.MIN_DRIVER: _BAD},
        },
        "spec": {"containers": [{"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    }  # fmt: skip
    try:
        await client.create(PODS, pod, namespace=namespace, dry_run=True)
    except ApiError as error:
        # The refusals are told apart by their texts: a webhook's has the same status as a missing right.
        message = str(error)
        if _DENIED in message and names.MIN_DRIVER in message:
            return passed("webhook-asked", f"it refused a pod with a bad word in namespace {namespace}")
        if "failed calling webhook" in message:
            return failed("webhook-asked", message, _cure(message))
        if error.forbidden and _DENIED not in message:
            cure = f"ask for the verb create on pods in namespace {namespace}, or name another: --namespace NAME"
            return warned("webhook-asked", f"you may not create pods in namespace {namespace}, not even to try", cure)
        return warned("webhook-asked", f"something else refused the pod: {message}", "name another: --namespace NAME")
    return failed(
        "webhook-asked", f"nobody refused a pod with a bad word in namespace {namespace}",
        "the webhook is not asked there: look at the chart's webhook.excludedNamespaces, and at "
        "kubectl get mutatingwebhookconfigurations",
    )  # fmt: skip


def excludes(configurations: Iterable[Mapping[str, Any]], own: str, namespace: str) -> bool:
    """Return whether the webhook's configurations exclude a namespace, by the chart's values.

    Args:
        configurations: The configurations of mutating and of validating webhooks.
        own: The driver's namespace.
        namespace: The namespace.
    """
    pod_hooks = [
        hook
        for configuration in configurations
        for hook in configuration.get("webhooks") or ()
        if (hook["clientConfig"].get("service") or {}).get("namespace") == own
        and any("pods" in (rule.get("resources") or ()) for rule in hook.get("rules") or ())
    ]
    return bool(pod_hooks) and all(_leaves_out(hook, namespace) for hook in pod_hooks)


def _leaves_out(hook: Mapping[str, Any], namespace: str) -> bool:
    wanted = (hook.get("namespaceSelector") or {}).get("matchExpressions") or ()
    return any(
        one.get("key") == "kubernetes.io/metadata.name"
        and one.get("operator") == "NotIn"
        and namespace in (one.get("values") or ())
        for one in wanted
    )


def not_asked(namespace: str) -> Finding:
    """Return the finding of the webhook checks that a namespace is left out, so no pod can be tried there."""
    return warned(
        "webhook-asked", f"the webhook is asked about no pod of namespace {namespace} (webhook.excludedNamespaces)",
        "name a namespace whose pods it is asked about: --namespace NAME",
    )  # fmt: skip


def _cure(said: str) -> str:
    if "x509" in said or "certificate" in said:
        return "delete the webhook's Secret and restart its pods, which make new certificates; or renew your own"
    return "look at the webhook's pods, and at network policies: the API server must reach their port"


def certificates(configurations: Iterable[Mapping[str, Any]], namespace: str, *, now: float) -> Iterator[Finding]:
    """Yield the findings of the webhook checks on when its certificates end, by which the API server trusts it.

    Args:
        configurations: Those of mutating and of validating webhooks.
        namespace: The driver's.
        now: Seconds since the epoch.
    """
    has_webhook = False
    trusted: dict[str, set[str]] = {}  # the names of the configurations, by bundle
    for configuration in configurations:
        name = str(configuration["metadata"]["name"])
        bundles = {
            str(hook["clientConfig"].get("caBundle") or "")
            for hook in configuration.get("webhooks") or ()
            if (hook["clientConfig"].get("service") or {}).get("namespace") == namespace
        }
        for bundle in sorted(bundles):
            has_webhook = True
            trusted.setdefault(bundle, set()).add(name)
            yield _ends(name, bundle, now)
    if len(trusted) > 1:
        different = " and ".join(sorted({min(names) for names in trusted.values()}))
        yield warned(
            "certificates", f"{different} trust different authorities, and the webhook has one certificate",
            "the webhook writes both within a minute: look at its log if they stay different; your own bundle has to "
            "stand in both",
        )  # fmt: skip
    if not has_webhook:
        yield failed(
            "certificates", f"no webhook configuration names a service of namespace {namespace}",
            "install the chart, or name its namespace: --driver-namespace NAME",
        )  # fmt: skip


def _ends(name: str, bundle: str, now: float) -> Finding:
    renew = "restart the webhook's pods, which renew their own; one of your own or cert-manager's renew there"
    if not bundle:
        return failed("certificates", f"{name} has no caBundle, so the API server cannot ask the webhook", renew)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=base64.b64decode(bundle, validate=True).decode("ascii"))
        ends = [ssl.cert_time_to_seconds(str(one["notAfter"])) for one in context.get_ca_certs()]
    except (ssl.SSLError, binascii.Error, ValueError, KeyError) as error:
        return failed("certificates", f"{name}: its caBundle cannot be read: {error}", renew)
    if not ends:
        return warned("certificates", f"{name}: its caBundle has no certificate of an authority", renew)
    days = (max(ends) - now) / 86_400
    if days < 0:
        return failed("certificates", f"{name}: its caBundle ended {-days:.0f} days ago", renew)
    if days * 86_400 < _SOON_S:
        return warned("certificates", f"{name}: its caBundle ends in {days:.0f} days", renew)
    return passed("certificates", f"{name}: its caBundle is good for {days:.0f} days")
