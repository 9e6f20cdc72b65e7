"""Where the webhook's certificates come from: cert-manager, by objects of the chart."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.chart import VARIANTS, container, objects, rules, workload

pytestmark = pytest.mark.helm
CERTIFICATE = ("Certificate", "gpu-topology-webhook")


def of_cert_manager(variant: str) -> dict[tuple[str, str], dict[str, Any]]:
    found = objects(*VARIANTS[variant])
    return {key: one for key, one in found.items() if one["apiVersion"] == "cert-manager.io/v1"}


def test_an_authority_of_the_releases_own_signs_and_outlives_what_it_signs() -> None:
    """A self-signed leaf would be its own authority, and each renewal a time without trust."""
    made = of_cert_manager("certManager")
    leaf, ca = made.pop(CERTIFICATE)["spec"], made.pop(("Certificate", "gpu-topology-webhook-ca"))["spec"]
    signed = made.pop(("Issuer", "gpu-topology-webhook-ca"))
    own = made.pop(("Issuer", "gpu-topology-webhook-self-signed"))
    assert made == {}
    assert ca["isCA"] is True
    assert ca["issuerRef"]["name"] == own["metadata"]["name"]
    assert own["spec"] == {"selfSigned": {}}
    assert ca["privateKey"]["rotationPolicy"] == "Never", "its renewal keeps what trusts it"
    assert signed["spec"]["ca"]["secretName"] == ca["secretName"]
    assert leaf["issuerRef"]["name"] == signed["metadata"]["name"]
    hours = [int(text.partition("h")[0]) for text in (leaf["renewBefore"], leaf["duration"], ca["duration"])]
    assert hours == sorted(hours)
    assert hours[2] > 10 * hours[1]


def test_an_issuer_of_the_houses_own_signs_alone() -> None:
    made = of_cert_manager("issuer")
    assert set(made) == {CERTIFICATE}
    spec = made[CERTIFICATE]["spec"]
    assert spec["issuerRef"] == {"name": "house", "kind": "ClusterIssuer", "group": "cert-manager.io"}
    assert spec["secretName"] == "tls"


@pytest.mark.parametrize("variant", ["certManager", "issuer"])
def test_what_is_signed_is_what_the_webhook_serves_and_the_api_server_trusts(variant: str) -> None:
    settings = VARIANTS[variant]
    rendered = objects(*settings)
    spec = rendered[CERTIFICATE]["spec"]
    pod = workload("webhook", *settings)["spec"]["template"]["spec"]
    (volume,) = [one for one in pod["volumes"] if one["name"] == "certificates"]
    assert volume["secret"]["secretName"] == spec["secretName"]
    assert "--certificates=mounted" in container("webhook", *settings)["args"]
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        found = rendered[kind, "gpu-topology-webhook"]
        annotations = found["metadata"]["annotations"]
        assert annotations.pop("cert-manager.io/inject-ca-from") == "gpu-topology/gpu-topology-webhook"
        assert annotations == ({"a/b": "c"} if variant == "certManager" else {})
        for hook in found["webhooks"]:
            service = hook["clientConfig"]["service"]
            assert spec["dnsNames"] == [f"{service['name']}.{service['namespace']}.svc"]
            assert "caBundle" not in hook["clientConfig"], "cert-manager's to write"


def test_the_webhook_then_needs_no_right_and_no_token() -> None:
    settings = VARIANTS["certManager"]
    assert [name for kind, name in objects(*settings) if "Role" in kind and "webhook" in name] == []
    assert workload("webhook", *settings)["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    assert rules("ClusterRole", "webhook")


def test_nothing_of_cert_manager_is_there_unless_it_is_asked_for() -> None:
    assert of_cert_manager("defaults") == of_cert_manager("mounted") == {}
