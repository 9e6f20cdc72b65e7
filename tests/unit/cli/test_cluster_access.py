"""Which API server ``gputopo topo --cluster`` speaks to, and with whose credentials."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from dradriver.cli.cluster import access
from dradriver.kube import config
from dradriver.kube.errors import ConfigError
from tests.paths import REPO


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a kubeconfig, outside any pod."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return tmp_path


def write(
    path: Path,
    name: str,
    *,
    user: Mapping[str, Any] | None = None,
    server: str = "https://example.org",
    current: bool = True,
) -> Path:
    """A kubeconfig with one context, cluster and user of the same name."""
    document = {
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "users": [{"name": name, "user": dict(user or {"token": f"token-{name}"})}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document | ({"current-context": name} if current else {})))
    return path


def plugin(path: Path, answer: object, *, status: int = 0, says: str = "") -> dict[str, Any]:
    """An exec plugin beside the kubeconfig that notes what it was told, and answers."""
    text = answer if isinstance(answer, str) else json.dumps(answer)
    script = path / "login.py"
    script.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        "open('told.json', 'w').write(os.environ['KUBERNETES_EXEC_INFO'])\n"
        f"sys.stderr.write({says!r})\nprint({text!r})\nsys.exit({status})\n"
    )
    script.chmod(0o755)
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": "./login.py", "interactiveMode": "IfAvailable"}}


def credential(**status: str) -> dict[str, Any]:
    return {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}


def test_the_named_file_wins_over_the_variable_and_that_over_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home / ".kube" / "config", "home")
    named = write(home / "named", "named")
    assert access.server(None, None).bearer() == "token-home"
    monkeypatch.setenv("KUBECONFIG", str(write(home / "variable", "variable")))
    assert access.server(None, None).bearer() == "token-variable"
    assert access.server(named, None).bearer() == "token-named"


def test_of_several_files_the_first_one_counts_and_missing_ones_do_not(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write(home / "1", "a", user={"token": "first"}, current=False)
    second = write(home / "2", "b")
    third = write(home / "3", "a", user={"token": "third"})
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, [home / "none", first, second, third])))
    assert access.server(None, None).bearer() == "token-b"
    assert access.server(None, "a").bearer() == "first"


def test_relative_paths_start_from_the_file_that_has_them(home: Path) -> None:
    users = write(home / "users" / "config", "u", user={"client-certificate": "cert.pem", "client-key": "key.pem"})
    (home / "users" / "cert.pem").write_text("CERT")
    (home / "users" / "key.pem").write_text("KEY")
    both = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://c", "certificate-authority": "ca.pem"}}],
    }
    (home / "clusters").mkdir()
    (home / "clusters" / "config").write_text(yaml.safe_dump(both))
    (home / "clusters" / "ca.pem").write_text("CA")
    read = config.from_kubeconfig([home / "clusters" / "config", users])
    assert (read.ca, read.client_cert, read.client_key) == (b"CA", b"CERT", b"KEY")


def test_an_unknown_context_is_told_the_known_ones(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [write(home / "1", "test"), write(home / "2", "production")]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, files)))
    with pytest.raises(ConfigError, match=r"contexts has no 'prod', only test, production$"):
        access.server(None, "prod")


def test_without_any_kubeconfig_it_is_the_pods_own_or_an_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"there is no ~/.kube/config\. Write --kubeconfig FILE"):
        access.server(None, None)
    monkeypatch.setenv("KUBECONFIG", str(home / "lost"))
    with pytest.raises(ConfigError, match=r"KUBECONFIG names .*lost, which is not there"):
        access.server(None, None)
    for name in ("token", "ca.crt"):
        (home / name).write_text("T")
    monkeypatch.setattr(config, "SERVICE_ACCOUNT", home)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert access.server(None, None).url == "https://10.96.0.1:443"
    with pytest.raises(ConfigError, match="no kubeconfig"):
        access.server(None, "named")


def test_a_plugin_gives_a_token(home: Path) -> None:
    file = write(home / "config", "x", user=plugin(home, credential(token="fresh")))
    assert access.server(file, None).bearer() == "fresh"
    told = json.loads((home / "told.json").read_text())  # it ran in the kubeconfig's folder
    assert told["kind"] == "ExecCredential"


def test_a_plugin_gives_a_certificate(home: Path) -> None:
    answer = credential(clientCertificateData="CERT", clientKeyData="KEY")
    read = access.server(write(home / "config", "x", user=plugin(home, answer)), None)
    assert (read.client_cert, read.client_key, read.bearer()) == (b"CERT", b"KEY", "")


def test_a_token_of_the_users_own_makes_the_plugin_needless(home: Path) -> None:
    user = {"token": "own"} | plugin(home, "", status=1)
    assert access.server(write(home / "config", "x", user=user), None).bearer() == "own"


@pytest.mark.parametrize(
    ("answer", "status", "says"),
    [
        ("", 3, r"gave no credentials: exec: process returned 3\. log in first.please$"),
        ("no JSON", 0, "failed to decode process output"),
        ([], 0, "gave no credentials"),
        ({"apiVersion": "client.authentication.k8s.io/v1", "kind": "x", "status": []}, 0, "gave no credentials"),
        (credential(), 0, "neither a token nor clientCertificateData"),
        (credential(clientCertificateData="CERT"), 0, "with clientKeyData"),
        (credential(token="t") | {"apiVersion": "other/v1"}, 0, "does not match"),
    ],
)
def test_a_plugin_that_fails_is_named(home: Path, answer: object, status: int, says: str) -> None:
    file = write(home / "config", "x", user=plugin(home, answer, status=status, says="log in first\nplease"))
    with pytest.raises(ConfigError, match=rf"exec plugin \./login\.py.*{says}") as caught:
        access.server(file, None)
    assert str(caught.value).isprintable()


def test_a_plugin_that_is_not_installed_is_named_with_its_hint(home: Path) -> None:
    spec = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-login", "installHint": "brew it"}
    file = write(home / "config", "x", user={"exec": spec})
    with pytest.raises(ConfigError, match=r"exec plugin no-such-login gave no credentials: .*\. brew it$"):
        access.server(file, None)
    for broken in ({"command": "x"}, "x", ["x"]):
        file = write(home / "config", "x", user={"exec": broken})
        with pytest.raises(ConfigError, match="gave no credentials"):
            access.server(file, None)


@pytest.mark.parametrize("kind", ["auth-provider", "username"])
def test_other_ways_to_log_in_are_refused(home: Path, kind: str) -> None:
    file = write(home / "config", "x", user={kind: "x"})
    with pytest.raises(ConfigError, match=f"user x uses {kind}, which is not supported"):
        access.server(file, None)


def test_an_entry_that_is_no_entry_is_named(home: Path) -> None:
    file = home / "config"
    file.write_text(yaml.safe_dump({"current-context": "x", "contexts": [{"name": "x", "context": "y"}]}))
    with pytest.raises(ConfigError, match=r"contexts: x holds 'y'\. Write fields there"):
        access.server(file, None)
    file.write_text(yaml.safe_dump({"current-context": "x", "contexts": 7}))
    with pytest.raises(ConfigError, match="contexts has no 'x', only none"):
        access.server(file, None)


def test_a_broken_address_is_named_before_a_plugin_runs(home: Path) -> None:
    file = write(home / "config", "x", user=plugin(home, credential(token="t")), server="https://[::1")
    with pytest.raises(ConfigError, match=r"config: server: 'https://\[::1'\. Write http:// or https:// and a host"):
        access.server(file, None)
    assert not (home / "told.json").exists()


@pytest.mark.slow
def test_the_official_package_is_imported_for_plugins_only(home: Path) -> None:
    file = write(home / "config", "x", user={"token": base64.b64encode(b"t").decode()})
    script = (
        "import sys; from pathlib import Path; from dradriver.cli.cluster import access, cluster_view\n"
        f"access.server(Path({str(file)!r}), None)\n"
        "assert 'kubernetes' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
