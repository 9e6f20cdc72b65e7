"""The address and the credentials of the API server."""

from __future__ import annotations

import base64
import binascii
import os
import re
import ssl
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from dradriver.kube.errors import ConfigError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_FORMS: Final = {
    "server": "http:// or https:// and a host, such as https://10.96.0.1:6443",
    "certificate-authority": "the path of a PEM file",
    "certificate-authority-data": "a PEM file in base64, on one line",
    "client-certificate": "the path of a PEM file",
    "client-certificate-data": "a PEM file in base64, on one line",
    "client-key": "the path of a PEM file",
    "client-key-data": "a PEM file in base64, on one line",
    "namespace": "a namespace's name",
    "tls-server-name": "the name in the server's certificate",
    "token": "the bearer token, on one line",
    "tokenFile": "the path of a file with the bearer token",
}
_DEEPEST: Final = 32  # levels of a kubeconfig; an exec plugin's arguments are the fifth
_MOST_VALUES: Final = 100_000  # of a kubeconfig, those behind aliases as often as they stand there
_MOST_BYTES: Final = 4 << 20  # of a kubeconfig, a token or a certificate
_MOST_NAMES: Final = 20  # in a message
_MOST_OF_A_NAME: Final = 100  # characters in a message
_SECRETS: Final = ("client-key-data", "token")
_HOST: Final = re.compile(r"[\w.:%-]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The address and the credentials of an API server.

    Attributes:
        url: The address, such as ``https://10.96.0.1:443``.
        ca: PEM certificates that verify the server's certificate; empty for the system's certificates.
        token: A bearer token that never changes.
        token_file: A file with a bearer token that changes, such as a projected token.
        client_cert: PEM certificate chain of the client.
        client_key: PEM key of the client.
        server_name: The name in the server's certificate, if it is not the address.
        insecure: Whether the server's certificate is not checked, as the kubeconfig says.
        namespace: The namespace of our pod, or of the kubeconfig's context.
    """

    url: str
    ca: bytes = b""
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    client_cert: bytes = b""
    client_key: bytes = field(default=b"", repr=False)
    server_name: str | None = None
    insecure: bool = False
    namespace: str = "default"

    def bearer(self) -> str:
        """Return the bearer token for the API server; empty if there is none.

        The file is read at every call, so that a rotated token is never missed. It is small and in memory.

        Raises:
            ConfigError: The file cannot be read, or is not text.
        """
        if self.token_file is None:
            return self.token
        try:
            return _read(self.token_file, "the service account's token").decode().strip()
        except UnicodeDecodeError:
            raise ConfigError(f"{self.token_file}: no bearer token: it is not UTF-8") from None

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for the API server; None for plain HTTP.

        Raises:
            ConfigError: A certificate or key cannot be used.
        """
        if not self.url.startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(cadata=self.ca.decode() if self.ca else None)
            if self.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.client_cert:
                # ssl reads a client's key from a path only.
                with tempfile.NamedTemporaryFile() as pair:
                    pair.write(self.client_cert + b"\n" + self.client_key)
                    pair.flush()
                    context.load_cert_chain(pair.name)
        except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
            raise ConfigError(f"{self.url}: the CA or client certificate is no usable PEM: {error}") from error
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The answer of an exec plugin: a token, a client's certificate chain with its key (PEM), or both."""

    token: str = field(default="", repr=False)
    client_cert: bytes = b""
    client_key: bytes = field(default=b"", repr=False)


Plugin = Callable[[Mapping[str, Any], Mapping[str, Any], Path], Credentials]
"""Runs an exec plugin: a user's ``exec``, the cluster's entry, and the folder that relative paths start from."""


def load(kubeconfig: Path | None) -> ServerConfig:
    """Return the API server's configuration, from the kubeconfig or else from our own pod.

    Raises:
        ConfigError: The kubeconfig cannot be used, or this process does not run in a pod with a service account.
    """
    return in_cluster() if kubeconfig is None else from_kubeconfig(kubeconfig)


def in_cluster() -> ServerConfig:
    """Return the API server's configuration from the service account of our own pod.

    Raises:
        ConfigError: This process does not run in a pod with a service account.
    """
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError(
            "KUBERNETES_SERVICE_HOST is not set, so this process is not in a pod. Write --kubeconfig FILE."
        )
    token_file = SERVICE_ACCOUNT / "token"
    _read(token_file, "the service account's token")
    namespace = SERVICE_ACCOUNT / "namespace"
    return ServerConfig(
        url=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        ca=_read(SERVICE_ACCOUNT / "ca.crt", "the cluster's CA"),
        token_file=token_file,
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
    )


def from_kubeconfig(
    paths: Path | Sequence[Path], context: str | None = None, *, plugin: Plugin | None = None
) -> ServerConfig:
    """Return the configuration (address and credentials) of a kubeconfig's context.

    If several files have an entry of the same name, the entry of the first file is used, as in kubectl. Relative paths
    of an entry start from the folder of its own file.

    Args:
        paths: One file, or several as in the variable ``KUBECONFIG``.
        context: The context's name; None for the current context.
        plugin: Runs exec plugins; without it, users with an exec plugin are refused.

    Raises:
        ConfigError: A file is no kubeconfig, a named entry is missing, a field has a bad value, the plugin failed, or
            the credentials are of an unsupported kind (auth providers, passwords).
    """
    # 1. Find the entries. A context names a cluster and a user. Each entry comes with the file that has it.
    files = [(path, _read_kubeconfig(path)) for path in ([paths] if isinstance(paths, Path) else paths)]
    place = os.pathsep.join(str(path) for path, _ in files)
    current_contexts = (_name_field(document, path, "current-context") for path, document in files)
    context_name = context or next(filter(None, current_contexts), "")
    if not context_name:
        raise ConfigError(f"{place}: current-context is not set. Name a context.")
    context_file, context_entry = _entry_of_name(files, "contexts", context_name)
    cluster_name, user_name = (
        _name_field(context_entry, context_file, "cluster"),
        _name_field(context_entry, context_file, "user"),
    )
    cluster_file, cluster = _entry_of_name(files, "clusters", cluster_name)
    user_file, user = _entry_of_name(files, "users", user_name) if user_name else (cluster_file, {})

    # 2. Refuse what is not supported. Exec plugins are, if the caller gave a function that runs them.
    for key in ("exec", "auth-provider", "username"):
        if user.get(key) and (key != "exec" or plugin is None):
            raise ConfigError(
                f"{user_file}: user {user_name[:_MOST_OF_A_NAME]} uses {key}, which is not supported here. Use a "
                "client certificate or a token, for example of `kubectl create token`."
            )
    if cluster.get("proxy-url"):
        raise ConfigError(
            f"{cluster_file}: cluster {cluster_name[:_MOST_OF_A_NAME]} uses proxy-url, which is not supported here"
        )
    url = _text_field(cluster, cluster_file, "server")
    if not url:
        raise ConfigError(f"{cluster_file}: cluster {cluster_name[:_MOST_OF_A_NAME]} has no server")

    # 3. Read the credentials. As for client-go, a token in the file takes precedence over an exec plugin.
    token_file = _text_field(user, user_file, "tokenFile")
    credentials = Credentials(
        token=_text_field(user, user_file, "token"),
        client_cert=_pem_field(user, user_file, "client-certificate"),
        client_key=_pem_field(user, user_file, "client-key"),
    )
    if plugin is not None and user.get("exec") and not (credentials.token or token_file):
        credentials = plugin(user["exec"], cluster, user_file.parent)
    return ServerConfig(
        url=url.rstrip("/"),
        ca=_pem_field(cluster, cluster_file, "certificate-authority"),
        token=credentials.token,
        token_file=user_file.parent / token_file if token_file else None,
        client_cert=credentials.client_cert,
        client_key=credentials.client_key,
        server_name=_text_field(cluster, cluster_file, "tls-server-name") or None,
        insecure=_bool_field(cluster, cluster_file, "insecure-skip-tls-verify"),
        namespace=_text_field(context_entry, context_file, "namespace") or "default",
    )


def _read_kubeconfig(path: Path) -> Mapping[str, Any]:
    from dradriver.yamltext import bounded  # here, for no pod needs it

    try:
        document = bounded.load(_read(path, "the kubeconfig").decode(), deepest=_DEEPEST, most=_MOST_VALUES)
    except bounded.OutOfBoundsError as error:
        raise ConfigError(f"{path}: no kubeconfig: line {error.line}: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: no YAML: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: the file is no kubeconfig. A kubeconfig has clusters, users and contexts.")
    return document


def _entry_of_name(
    files: Sequence[tuple[Path, Mapping[str, Any]]], section: str, name: str
) -> tuple[Path, Mapping[str, Any]]:
    """Return the first entry of a section with this name: its file and its content.

    A section is, for example, ``users``. ``files`` are the kubeconfig files with their contents, the most important
    first.

    Raises:
        ConfigError: There is no such entry; the message lists the names that exist.
    """
    names_seen = []
    for path, document in files:
        entries = document.get(section)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict):
                names_seen.append(_name_text(entry.get("name")))
                if names_seen[-1] == name:
                    # A section is a list of {name: …, user: {…}}: the content is below the singular of its name.
                    content = entry.get(section.removesuffix("s")) or {}
                    if not isinstance(content, dict):
                        raise ConfigError(
                            f"{path}: {section}: {name[:_MOST_OF_A_NAME]} holds {_shown(content)}. Write fields there."
                        )
                    return path, content
    place = os.pathsep.join(str(path) for path, _ in files)
    others = [other[:_MOST_OF_A_NAME] for other in names_seen[:_MOST_NAMES]] + ["…"] * (len(names_seen) > _MOST_NAMES)
    raise ConfigError(f"{place}: {section} has no {_shown(name)}, only {', '.join(others) or 'none'}")


def _shown(value: object) -> str:
    from dradriver.yamltext.bounded import shown  # here, for no pod needs it

    return shown(value)


def _name_field(entry: Mapping[str, Any], path: Path, key: str) -> str:
    """Return the name in a field of a kubeconfig entry; empty if it is missing.

    A number or bool is converted to text. ``path`` is the file, for messages.
    """
    value = entry.get(key)
    if value is None or isinstance(value, str | bool | int | float):
        return _name_text(value)
    raise ConfigError(f"{path}: {key}: {_shown(value)}. Write a name, in quotes.")


def _name_text(value: object) -> str:
    """Return the name of an entry as text, even if the value is not text.

    No error is raised here, because a value of a wrong type matters only if the entry is used.
    """
    return value if isinstance(value, str) else "" if value is None else _shown(value)


def _text_field(entry: Mapping[str, Any], path: Path, key: str) -> str:
    """Return the text in a field of a kubeconfig entry; empty if the field is missing.

    The scheme of a server's address becomes lower case. ``path`` is the file, for messages.
    """
    value = entry.get(key)
    if value is None:
        return ""
    try:
        if not isinstance(value, str) or not value.isprintable():
            raise ValueError("no line of text")
        return _address(value) if key == "server" and value else value
    except ValueError:
        shown = "a value that is not shown" if key in _SECRETS else _shown(value)
        raise ConfigError(f"{path}: {key}: {shown}. Write {_FORMS[key]}.") from None


def _bool_field(entry: Mapping[str, Any], path: Path, key: str) -> bool:
    value = entry.get(key)
    if value is not None and not isinstance(value, bool):
        raise ConfigError(f"{path}: {key}: {_shown(value)}. Write true or false, without quotes.")
    return bool(value)


def _address(text: str) -> str:
    parts = urlsplit(text)
    _ = parts.port  # raises ValueError where it is none
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(parts.hostname or ""):
        raise ValueError("no HTTP address")
    return parts.geturl()


def _pem_field(entry: Mapping[str, Any], path: Path, key: str) -> bytes:
    """Return a certificate or key: from ``entry`` (base64), or from the file that it names."""
    if inline := _text_field(entry, path, key + "-data"):
        try:
            return base64.b64decode(inline, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ConfigError(f"{path}: {key}-data is no base64: {error}") from error
    file = _text_field(entry, path, key)
    return _read(path.parent / file, key) if file else b""


def _read(path: Path, what: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)  # a device does not say how much it has
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot read {what}: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"{path}: cannot read {what}: it is larger than {_MOST_BYTES >> 20} MiB")
    return content
