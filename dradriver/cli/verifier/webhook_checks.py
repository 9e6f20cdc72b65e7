"""The checks of the webhook: whether the API server calls it (tried with a dry run), and when its certificates end.

A *finding* is the result of one check: PASS, WARN or FAIL, with the repair.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import ssl
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from dradriver.api.base import names
from dradriver.cli.verifier.driver_pods import COMPONENT, WEBHOOK, Pod, arguments, container_of, pods_of
from dradriver.cli.verifier.finding import Finding, failed, first_few, passed, warned
from dradriver.kube.client import ApiError, Client
from dradriver.kube.resources import PODS, SECRETS

_SOON_S: Final = 30 * 86_400.0
_DENIED: Final = "denied the request"
_BAD: Final = "no-version"


async def check_with_bad_pod(client: Client, namespace: str) -> Finding:
    """Return the result of a check: whether the API server calls the webhook for pods.

    The check creates, as a dry run, a pod in the namespace ``namespace``, which the webhook must refuse.

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
            return passed("webhook-asked", f"it refused a pod with a wrong annotation in namespace {namespace}")
        if "failed calling webhook" in message:
            return failed("webhook-asked", message, _cure(message))
        if error.forbidden and _DENIED not in message:
            cure = f"ask for the verb create on pods in namespace {namespace}, or name another: --namespace NAME"
            return warned("webhook-asked", f"you may not create pods in namespace {namespace}, not even to try", cure)
        return warned("webhook-asked", f"something else refused the pod: {message}", "name another: --namespace NAME")
    return failed(
        "webhook-asked", f"nothing refused a pod with a wrong annotation in namespace {namespace}",
        "the webhook is not asked there: look at the chart's webhook.excludedNamespaces, and at "
        "kubectl get mutatingwebhookconfigurations",
    )  # fmt: skip


def excludes(configurations: Iterable[Mapping[str, Any]], own: str, namespace: str) -> bool:
    """Return whether the webhook's configurations exclude a namespace.

    The chart's values can name namespaces whose pods the API server does not send to the webhook.

    Args:
        configurations: The driver's configurations of mutating and of validating webhooks.
        own: The driver's namespace.
        namespace: The namespace to look for.
    """
    pod_hooks = [
        hook
        for configuration in configurations
        for hook in _hooks_of(configuration, own)
        if any("pods" in (rule.get("resources") or ()) for rule in hook.get("rules") or ())
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
    """Return the finding that the webhook excludes a namespace, so that no pod can be tried there."""
    return warned(
        "webhook-asked", f"the webhook is asked about no pod of namespace {namespace} (webhook.excludedNamespaces)",
        "name a namespace whose pods it is asked about: --namespace NAME",
    )  # fmt: skip


def _cure(said: str) -> str:
    if "x509" in said or "certificate" in said:
        return (
            "delete the webhook's Secret and restart its pods, which make new certificates. "
            "If the certificate is your own, renew it"
        )
    return "look at the webhook's pods, and at network policies: the API server must reach their port"


def certificates(configurations: Iterable[Mapping[str, Any]], namespace: str, *, now: float) -> Iterator[Finding]:
    """Yield findings about the certificates by which the API server trusts the webhook: when they end.

    Args:
        configurations: The driver's configurations of mutating and of validating webhooks.
        namespace: The driver's namespace.
        now: Seconds since the epoch.
    """
    trusted: dict[str, set[str]] = {}  # the names of the configurations, by bundle
    for configuration in configurations:
        for hook in _hooks_of(configuration, namespace):
            bundle = str(hook["clientConfig"].get("caBundle") or "")
            trusted.setdefault(bundle, set()).add(str(configuration["metadata"]["name"]))
    for bundle, configuration_names in sorted(trusted.items()):
        yield _ends(" and ".join(sorted(configuration_names)), bundle, now)
    if len(trusted) > 1:
        different = " and ".join(sorted(set().union(*trusted.values())))
        yield warned(
            "certificates",
            f"the webhooks of {different} trust different authorities, and the webhook has one certificate",
            "the webhook writes all of them within a minute: read its log if they stay different. Your own bundle must "
            "be in all of them",
        )  # fmt: skip
    if not trusted:
        yield failed(
            "certificates", f"no webhook configuration names a service of namespace {namespace}",
            "install the chart, or name its namespace: --driver-namespace NAME",
        )  # fmt: skip


async def against_secret(
    client: Client, configurations: Iterable[Mapping[str, Any]], pods: Iterable[Pod], namespace: str, *, now: float
) -> list[Finding]:
    """Return the results of a check: whether each caBundle verifies the webhook's certificate.

    The webhook serves the certificate that is in its Secret. The authorities in caBundle and Secret are not compared:
    while authorities rotate, the two rightly differ.

    Args:
        client: The API server's client, inside its ``async with`` block.
        configurations: The driver's configurations of mutating and of validating webhooks.
        pods: The pods of the driver's namespace.
        namespace: The driver's namespace.
        now: Seconds since the epoch.

    Returns:
        No findings if the Secret is not known.
    """
    secret, is_self_managed = _secret_of(pods)
    if not secret:
        return []
    # A certificate of the user's own can be of a form that only the API server's library accepts.
    failed_or_warned, cure = (
        (failed, f"the webhook writes it within a minute. If it stays so: kubectl -n {namespace} rollout restart "
                 f"deployment -l {COMPONENT}={WEBHOOK}")
        if is_self_managed
        else (warned, "look whether webhook.certificates.caBundle, or what cert-manager writes there, is the authority "
                      "of the certificate in this Secret")
    )  # fmt: skip
    try:
        content: dict[str, Any] = await client.get(SECRETS, secret, namespace=namespace)
    except ApiError as error:
        if error.not_found:
            text = f"namespace {namespace} has no Secret {secret} of the webhook"
            return [failed_or_warned("ca-bundle", text, cure)]
        if error.status == HTTPStatus.FORBIDDEN:
            return [passed("ca-bundle", f"not compared: you may not read Secret {secret} in namespace {namespace}")]
        return [warned("ca-bundle", f"not compared: Secret {namespace}/{secret} cannot be read: {error}", "try again")]
    certificate = str((content.get("data") or {}).get("tls.crt") or "")
    different = sorted(
        {
            str(configuration["metadata"]["name"])
            for configuration in configurations
            for hook in _hooks_of(configuration, namespace)
            if not _verifies(str(hook["clientConfig"].get("caBundle") or ""), certificate, now)
        }
    )
    if different:
        return [
            failed_or_warned(
                "ca-bundle",
                f"the caBundle of {first_few(different)} does not verify the certificate in Secret {namespace}/"
                f"{secret}, so the API server does not trust the webhook",
                cure,
            )
        ]
    return [passed("ca-bundle", f"each caBundle verifies the certificate in Secret {namespace}/{secret}")]


def _verifies(authorities: str, certificate: str, now: float) -> bool:
    """Return whether an authority of a caBundle signed a certificate, and both are valid now.

    Args:
        authorities: The caBundle: PEM in base64.
        certificate: The certificate, and the intermediate ones that the webhook serves with it: PEM in base64.
        now: Seconds since the epoch.
    """
    # Here, because the other commands need no cryptography.
    from cryptography import x509
    from cryptography.x509 import verification

    any_extensions = verification.ExtensionPolicy.permit_all()
    agnostic = verification.Criticality.AGNOSTIC
    try:
        trusted = x509.load_pem_x509_certificates(base64.b64decode(authorities, validate=True))
        served, *intermediates = x509.load_pem_x509_certificates(base64.b64decode(certificate, validate=True))
        # A client's policy, because the name of the Service is not compared. The library needs these two extensions.
        verification.PolicyBuilder().store(verification.Store(trusted)).time(
            datetime.datetime.fromtimestamp(now, datetime.UTC)
        ).extension_policies(
            ca_policy=any_extensions.require_present(x509.BasicConstraints, agnostic, None),
            ee_policy=any_extensions.require_present(x509.SubjectAlternativeName, agnostic, None),
        ).build_client_verifier().verify(served, intermediates)
    except (ValueError, verification.VerificationError):
        return False
    return True


def _hooks_of(configuration: Mapping[str, Any], namespace: str) -> list[Mapping[str, Any]]:
    """Return the webhooks of a configuration whose Service is in a namespace."""
    return [
        hook
        for hook in configuration.get("webhooks") or ()
        if (hook["clientConfig"].get("service") or {}).get("namespace") == namespace
    ]


def _secret_of(pods: Iterable[Pod]) -> tuple[str, bool]:
    """Return the name of the Secret with the webhook's certificates, and whether the webhook writes it itself.

    The name is empty if the Secret is not known.
    """
    for pod in pods_of(pods, WEBHOOK):
        kept = arguments(container_of(pod, WEBHOOK) or {}).get("--secret", "")
        mounted = ((volume.get("secret") or {}).get("secretName") for volume in pod["spec"].get("volumes") or ())
        if secret := kept or next(filter(None, mounted), ""):
            return str(secret), bool(kept)
    return "", False


def _ends(name: str, bundle: str, now: float) -> Finding:
    renew = (
        "restart the webhook's pods, which renew their own certificate. Renew a certificate "
        "of your own or of cert-manager there"
    )
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
