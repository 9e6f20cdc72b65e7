"""An invalid policies file is not stored: kubectl and Helm print its errors, and the policies in force stay."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any, Final

import pytest

from dradriver.api.base import names
from tests import deploy
from tests.cluster import Cluster
from tests.e2e.installation import Installation
from tests.e2e.kubectl import eventually

NAME: Final = f"{deploy.RELEASE}-policies"
VALID: Final = "tenants: {one: {namespaces: [t-both]}}\n"
INVALID: Final = "weights: {nvlink: -1}\ntenants: {one: {namespaces: [t-both]}, two: {namespaces: [t-both]}}\n"
TWICE: Final = "tenants.two.namespaces[0]: the namespace t-both also belongs to tenant one"
OF_ANOTHER_RELEASE: Final = {"metadata": {"labels": {names.VERSION_LABEL: None}}}


@pytest.fixture
def asked(driver: Cluster) -> Cluster:
    """The cluster, once the API server asks the webhook about policies: it trusts a new webhook after some seconds."""
    eventually("the webhook is asked about policies", lambda: store(driver, INVALID, "--dry-run=server").returncode)
    return driver


@pytest.fixture
def installed_afterwards(installation: Installation) -> Iterator[None]:
    """Leave the release behind as it was: a refused upgrade is its last revision."""
    installation.forget()
    yield
    installation.install()


def store(
    cluster: Cluster, text: str, *options: str, change: dict[str, Any] | None = None
) -> subprocess.CompletedProcess[str]:
    """Write a policies file, and a further change, into the ConfigMap, and return what kubectl said."""
    patch = json.dumps({"data": {names.POLICIES_KEY: text}} | (change or {}))
    words = ("patch", "configmap", NAME, "--type=merge", f"--patch={patch}", *options)
    return cluster.kubectl("-n", deploy.NAMESPACE, *words, check=False)


def stored(cluster: Cluster) -> str:
    """Return the policies file that is stored."""
    text: str = cluster.api.object("configmap", NAME, namespace=deploy.NAMESPACE)["data"][names.POLICIES_KEY]
    return text


def test_kubectl_prints_all_errors_and_stores_only_a_valid_file(asked: Cluster) -> None:
    before = stored(asked)
    refused = store(asked, INVALID)
    assert refused.returncode != 0
    assert "The policies file has 2 errors, so it is not stored." in refused.stderr
    assert "weights.nvlink: '-1' is not allowed." in refused.stderr
    assert TWICE in refused.stderr
    assert stored(asked) == before

    admitted = store(asked, VALID, "--dry-run=server")
    assert (admitted.returncode, admitted.stderr) == (0, "")
    of_another = store(asked, INVALID, "--dry-run=server", change=OF_ANOTHER_RELEASE)
    assert of_another.returncode == 0
    assert "keeps its last valid one" in of_another.stderr


@pytest.mark.usefixtures("installed_afterwards")
def test_helm_prints_the_errors_that_the_charts_schema_cannot_find(asked: Cluster) -> None:
    before = stored(asked)
    done = asked.helm(
        *("upgrade", deploy.RELEASE, str(deploy.CHART), "--namespace", deploy.NAMESPACE, "--reuse-values"),
        "--force-conflicts",
        *("--set", "policies.tenants.one.namespaces[0]=t-both"),
        *("--set", "policies.tenants.two.namespaces[0]=t-both"),
        *("--wait", "--timeout", "180s"),
        check=False,
    )
    assert done.returncode != 0
    assert TWICE in done.stderr
    assert stored(asked) == before
