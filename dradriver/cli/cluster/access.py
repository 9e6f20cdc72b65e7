"""Access to the user's cluster, for every command about a cluster.

The access comes from kubeconfig files (found as kubectl finds them), from exec plugins, or from the service account of
the pod in which the command runs.

Exec plugins are run by the official ``kubernetes`` package, which is imported only if the kubeconfig has one. That
package can read kubeconfig files, too, but differs from kubectl in ways that matter here:
* It uses the current-context of the last of several files. kubectl uses that of the first file.
* It continues without credentials if a plugin fails.
* It writes keys to temporary files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dradriver.kube import config
from dradriver.kube.config import Credentials, ServerConfig
from dradriver.kube.errors import ConfigError
from dradriver.view.terminal_text import plain
from dradriver.yamltext.bounded import shown

_MAX_SHOWN_CHARACTERS: Final = 500  # characters that a message repeats of a kubeconfig, or of what a plugin says


def server(kubeconfig: Path | None, context: str | None) -> ServerConfig:
    """Return the API server and credentials of a kubeconfig context.

    Without ``context`` the current context counts. Without ``kubeconfig`` the files of the variable ``KUBECONFIG``
    count, else ``~/.kube/config``, else the service account of the command's own pod.

    Raises:
        ConfigError: None of these sources exists, or one cannot be used; see ``config.from_kubeconfig``.
    """
    paths = [kubeconfig] if kubeconfig is not None else _usual_paths()
    if paths:
        return config.from_kubeconfig(paths, context, plugin=run_plugin)
    if context is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return config.in_cluster()
    named = os.environ.get("KUBECONFIG")
    missing = f"KUBECONFIG names {named}, which is not there" if named else "there is no ~/.kube/config"
    raise ConfigError(f"there is no kubeconfig: {missing}. Write --kubeconfig FILE or set KUBECONFIG.")


def _usual_paths() -> list[Path]:
    named = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    return [path for part in named.split(os.pathsep) if part and (path := Path(part).expanduser()).exists()]


def run_plugin(spec: Mapping[str, Any], cluster: Mapping[str, Any], folder: Path) -> Credentials:
    """Run a user's exec plugin and return the credentials that it gives.

    The plugin may ask questions on a terminal.

    Args:
        spec: The field ``exec`` of the user in the kubeconfig.
        cluster: The cluster in the kubeconfig, which some plugins ask for.
        folder: The kubeconfig's folder, where the plugin runs.

    Raises:
        ConfigError: The plugin cannot be run, it failed, or its answer has no credentials.
    """
    # A kubeconfig can hold anything: ``command`` is for messages only. ``shown`` and ``plain`` return text that is safe
    # to print.
    command = spec.get("command") if isinstance(spec, dict) else None
    command = command[:_MAX_SHOWN_CHARACTERS] if isinstance(command, str) else shown(command)
    try:  # imported here, because few users have a plugin
        from kubernetes.config.config_exception import ConfigException
        from kubernetes.config.exec_provider import ExecProvider
        from kubernetes.config.kube_config import ConfigNode
    except ImportError as error:
        raise ConfigError(f"exec plugin {command}: running it needs the Python package kubernetes") from error
    try:
        # ``ConfigNode`` is a part of a kubeconfig with its name, for the library's messages. ``run`` returns the status
        # of the plugin's ExecCredential (client.authentication.k8s.io).
        status = ExecProvider(ConfigNode("exec", spec), str(folder), ConfigNode("cluster", cluster)).run()
        credentials = Credentials(
            token=str(status.get("token") or ""),
            client_cert=str(status.get("clientCertificateData") or "").encode(),
            client_key=str(status.get("clientKeyData") or "").encode(),
        )
    except (ConfigException, OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        # An OSError means that the plugin could not be started, so ``spec`` was read as a dict.
        hint = spec.get("installHint") if isinstance(error, OSError) else None
        hint = f". {hint[:_MAX_SHOWN_CHARACTERS]}" if isinstance(hint, str) and hint else ""
        raise ConfigError(
            plain(f"exec plugin {command} gave no credentials: {str(error)[:_MAX_SHOWN_CHARACTERS]}{hint}")
        ) from error
    if not credentials.token and not (credentials.client_cert and credentials.client_key):
        raise ConfigError(
            plain(f"exec plugin {command}: its answer has neither a token nor clientCertificateData with clientKeyData")
        )
    return credentials
