"""In-cluster and kubeconfig configuration."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from dradriver.kube import config
from dradriver.kube.errors import ConfigError


def kubeconfig(path: Path, *, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> Path:
    document = {
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "ns"}},
            {"name": "there", "context": {"cluster": "missing"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": "https://example.org:6443/"} | (cluster or {})}],
        "users": [{"name": "u", "user": user or {}}],
    }
    file = path / "config"
    file.write_text(yaml.safe_dump(document))
    return file


def test_certificates_come_from_the_file_itself_or_from_files_next_to_it(tmp_path: Path) -> None:
    (tmp_path / "pki").mkdir()
    (tmp_path / "pki" / "key.pem").write_bytes(b"KEY")
    user = {"client-certificate-data": base64.b64encode(b"CERT").decode(), "client-key": "pki/key.pem"}
    file = kubeconfig(tmp_path, cluster={"certificate-authority-data": base64.b64encode(b"CA").decode()}, user=user)

    read = config.load(file)

    assert (
        read.url,
        read.ca,
        read.client_cert,
        read.client_key,
        read.namespace,
    ) == ("https://example.org:6443", b"CA", b"CERT", b"KEY", "ns")


def test_tokens_come_from_the_file_itself_or_from_a_file_that_is_read_again(tmp_path: Path) -> None:
    assert config.load(kubeconfig(tmp_path, user={"token": "T"})).bearer() == "T"
    read = config.load(kubeconfig(tmp_path, user={"tokenFile": "token"}))
    (tmp_path / "token").write_text("one\n")
    assert read.bearer() == "one"
    (tmp_path / "token").write_text("two\n")
    assert read.bearer() == "two"


def test_secrets_are_not_shown() -> None:
    shown = repr(config.ServerConfig(url="https://x", token="hunter2", client_key=b"hunter3"))

    assert "hunter" not in shown


@pytest.mark.parametrize(
    ("user", "cluster", "says"),
    [
        ({"exec": {"command": "aws"}}, {}, "user u uses exec.*client certificate or a token"),
        ({"auth-provider": {"name": "oidc"}}, {}, "uses auth-provider"),
        ({"username": "root", "password": "x"}, {}, "uses username"),
        ({}, {"proxy-url": "http://p"}, "cluster c uses proxy-url"),
        ({}, {"server": ""}, "cluster c has no server"),
        ({}, {"insecure-skip-tls-verify": "false"}, "'false'. Write true or false, without quotes"),
        ({}, {"certificate-authority-data": "%"}, "certificate-authority-data is no base64"),
        ({}, {"certificate-authority": "no/such.pem"}, "such.pem: cannot read certificate-authority"),
    ],
)
def test_what_is_not_supported_is_named(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        config.load(kubeconfig(tmp_path, user=user, cluster=cluster))


PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
DATA = ("certificate-authority-data", "client-certificate-data", "client-key-data")
TEXTS = ("server", "token", "tls-server-name")


@pytest.mark.parametrize("value", [5, ["a"], {"a": "b"}, False, "a\0b", "a\n"], ids=repr)
@pytest.mark.parametrize("key", [*PATHS, *DATA, *TEXTS])
def test_what_is_no_line_of_text_is_refused_with_its_place(tmp_path: Path, key: str, value: object) -> None:
    clusters = ("server", "tls-server-name", "certificate-authority", "certificate-authority-data")
    entry = {key: value}
    file = kubeconfig(tmp_path, cluster=entry) if key in clusters else kubeconfig(tmp_path, user=entry)

    with pytest.raises(ConfigError) as caught:
        config.load(file)

    said = str(caught.value)
    secret = key in ("token", "client-key-data")
    assert said.startswith(f"{file}: {key}: {'a value that is not shown' if secret else repr(value)}. Write ")
    assert said.isprintable()


def test_a_namespace_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path)
    file.write_text(file.read_text().replace("namespace: ns", "namespace: [ns]"))

    with pytest.raises(ConfigError, match=r"config: namespace: \['ns'\]\. Write a namespace's name"):
        config.load(file)


def test_secrets_that_are_no_text_are_not_shown(tmp_path: Path) -> None:
    for user in ({"token": ["hunter2"]}, {"token": "hunter2\n"}, {"client-key-data": ["hunter2"]}):
        with pytest.raises(ConfigError) as caught:
            config.load(kubeconfig(tmp_path, user=user))
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "server",
    [
        "https://[::1",
        "https://[zz]",
        "https://",
        "https://:443",
        "https://h:x",
        "https://h:99999",
        "https://a b",
        "https://é.org",
        "ftp://h",
        "h:6443",
        "h",
    ],
)
def test_a_server_that_is_no_address_is_refused(tmp_path: Path, server: str) -> None:
    file = kubeconfig(tmp_path, cluster={"server": server})

    with pytest.raises(ConfigError) as caught:
        config.load(file)

    assert str(caught.value).startswith(f"{file}: server: {server!r}. Write http:// or https:// and a host, such as ")


@pytest.mark.parametrize(
    ("server", "url"),
    [
        ("https://[fd00::1]:6443", "https://[fd00::1]:6443"),
        ("https://rancher.example/k8s/clusters/c-1/", "https://rancher.example/k8s/clusters/c-1"),
        ("http://127.0.0.1:8001", "http://127.0.0.1:8001"),
        ("HTTPS://h_1", "https://h_1"),
    ],
)
def test_addresses_are_taken_as_they_are(tmp_path: Path, server: str, url: str) -> None:
    read = config.load(kubeconfig(tmp_path, cluster={"server": server}))

    assert read.url == url
    assert (read.ssl_context() is None) == url.startswith("http:")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "no YAML"),
        ("[]", "no kubeconfig"),
        ("{}", "current-context is not set"),
        ("current-context: x", "has no 'x'"),
    ],
)
def test_what_is_no_kubeconfig_is_said(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)

    with pytest.raises(ConfigError, match=says):
        config.load(file)


def test_a_context_may_be_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="clusters has no 'missing', only c"):
        config.from_kubeconfig(kubeconfig(tmp_path), "there")


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing: cannot read the kubeconfig"):
        config.load(tmp_path / "nothing")


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {"token": "T\n", "ca.crt": "CA", "namespace": "ns\n"}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(config, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    return tmp_path


def test_a_pod_finds_its_server(pod: Path) -> None:
    read = config.load(None)

    assert (read.url, read.ca, read.bearer(), read.namespace) == ("https://10.96.0.1:6443", b"CA", "T", "ns")


def test_a_version_6_address_stands_in_brackets(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")

    assert config.in_cluster().url == "https://[fd00::1]:6443"


def test_outside_a_pod_the_way_out_is_named(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")

    with pytest.raises(ConfigError, match="Write --kubeconfig FILE"):
        config.load(None)


def test_a_pod_without_service_account_is_told_so(pod: Path) -> None:
    (pod / "token").unlink()

    with pytest.raises(ConfigError, match="cannot read the service account's token"):
        config.load(None)


def test_a_text_that_is_no_certificate_is_refused() -> None:
    for bad in (
        config.ServerConfig(url="https://x", ca=b"no PEM"),
        config.ServerConfig(url="https://x", client_cert=b"x"),
    ):
        with pytest.raises(ConfigError, match="no usable PEM"):
            bad.ssl_context()
    assert config.ServerConfig(url="http://x").ssl_context() is None


BOMB = "a: &b0 [1, 1]\n" + "".join(f"a{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 9)}]\n" for n in range(1, 12))
MERGES = "a: &b0 {x: 1}\n" + "".join(f"a{n}: &b{n} {{<<: [{', '.join([f'*b{n - 1}'] * 9)}]}}\n" for n in range(1, 9))
ENTRY = "current-context: x\ncontexts:\n- name: x\n  context: {cluster: c}\nclusters:\n- name: c\n  cluster: "


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "no kubeconfig: line 1: nested deeper than 32 levels"),
        ("- " * 100_000, "no kubeconfig: line 1: nested deeper than 32 levels"),
        ("a: &a [*a]", "no kubeconfig: line 1: an alias of itself"),
        (BOMB, ": more than 100000 values behind aliases"),
        (MERGES, ": more than 100000 values behind aliases"),
        ("a: !!bool x", "no YAML: line 1: 'x'"),
        ("a:\n- !!int ''", "no YAML: line"),
        ("a: 2026-99-99", "no YAML: line 1: month must be in"),
        ("a: !!timestamp x", "no YAML: line 1"),
        ("a: " + "9" * 5000, "no YAML: line 1: Exceeds the limit"),
        ("*" + "a" * 100_000, "no YAML: line 1: found undefined alias"),
        ("? [1]\n: 2", "no YAML: line 1: found unhashable key"),
        ("current-context: [x]", "current-context: ['x']. Write a name"),
        ("current-context: 0x" + "f" * 5000, "contexts has no 'a number', only none"),
        ("current-context: " + "x" * 100_000, "contexts has no 'x"),
        (ENTRY + "[1]", "clusters: c holds [1]. Write fields there."),
        (ENTRY + "{server: {a: b}}", "server: {'a': 'b'}. Write http:// or https://"),
        (ENTRY + "{server: 'https://x:99999'}", "Write http:// or https://"),
(ENTRY + f"{{server: 'https://x', certificate-authority: {'a' * 5000}}}", "cannot read certificate-authority"),
    ],
)  # fmt: skip
def test_an_odd_kubeconfig_is_refused_in_a_short_message(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        config.from_kubeconfig(file)
    message = str(caught.value).replace(str(file), "config").replace("a" * 5000, "a")
    assert says in message
    assert len(message) < 400


def test_a_kubeconfig_may_have_aliases_and_names_that_are_numbers(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(
        "current-context: 1\ncontexts: [{name: 1, context: &c {cluster: 2}}, {name: 3, context: *c}]\n"
        "clusters: [{name: 2, cluster: {server: 'https://x'}}]\n"
    )
    assert config.from_kubeconfig(file).url == config.from_kubeconfig(file, "3").url == "https://x"


@pytest.mark.parametrize("name", ["2026-01-01", "[x]", "{a: b}", "!!binary aGk=", "'x y'", "~"])
def test_an_entry_with_an_odd_name_keeps_no_other_entry(tmp_path: Path, name: str) -> None:
    file = tmp_path / "config"
    odd = f"clusters:\n- {{name: {name}, cluster: [x]}}\n"
    file.write_text(ENTRY.replace("clusters:\n", odd) + "{server: 'https://x'}")
    assert config.from_kubeconfig(file).url == "https://x"


def test_a_kubeconfig_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="/dev/zero: cannot read the kubeconfig: it is larger than 4 MiB"):
        config.from_kubeconfig(Path("/dev/zero"))


def test_a_token_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="token: no bearer token: it is not UTF-8"):
        config.load(kubeconfig(tmp_path, user={"tokenFile": "token"})).bearer()
