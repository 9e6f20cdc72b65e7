"""``python -m webhook``: the admission server."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server until a signal, and return the exit status."""
    options = parser().parse_args(argv)
    if options.certificates == "mounted" and options.certificate_dir is None:
        parser().error("--certificates=mounted needs --certificate-dir")
    from dradriver.kube import process

    process.setup_logging(json_format=options.log_format == "json", verbose=options.verbose)
    return process.run(serve(options))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(prog="python -m webhook", description="Admission server of gpu.topology.")
    add = found.add_argument
    add("--namespace", required=True, help="namespace of the service and of the certificates' secret")
    add("--service", required=True, help="name of the service that the API server calls")
    add("--secret", default="", help="secret that keeps self-managed certificates (default: SERVICE-certificates)")
    add("--mutating-configuration", default="", metavar="NAME", help="MutatingWebhookConfiguration to set caBundle of")
    add("--validating-configuration", default="", metavar="NAME", help="ValidatingWebhookConfiguration, the same")
    add("--controller-user", required=True, help="user name of the controller: system:serviceaccount:NAMESPACE:NAME")
    add("--port", type=int, default=8443, help="HTTPS port (default: %(default)s)")
    add("--health-port", type=int, default=8083, help="port of /healthz, /readyz, /metrics (default: %(default)s)")
    add("--certificates", choices=("self-managed", "mounted"), default="self-managed")
    add("--certificate-dir", type=Path, metavar="DIR", help="folder with tls.crt and tls.key, for mounted certificates")
    add("--kubeconfig", type=Path, metavar="FILE", help="default: the pod's service account")
    add("--log-format", choices=("text", "json"), default="text")
    add("-v", "--verbose", action="store_true")
    return found


async def serve(options: argparse.Namespace) -> None:
    """Serve until cancelled: admission over TLS, health and metrics beside it, certificates renewed all the while."""
    from dradriver.kube.serve import serve_health
    from webhook import server, tls
    from webhook.admission import Admission

    context = tls.server_context()
    endpoint = server.Endpoint(Admission(controller_user=options.controller_user))
    if options.certificates == "mounted":
        from webhook.mounted import Mounted

        mounted = Mounted(options.certificate_dir, context=context)
        async with (
            serve_health(options.health_port, ready=mounted.ready),
            server.serve(endpoint.handle, port=options.port, context=context),
            asyncio.TaskGroup() as group,
        ):
            group.create_task(mounted.run())
        return

    from dradriver.kube.client import Client
    from dradriver.kube.config import load
    from webhook import keeper

    async with Client(load(options.kubeconfig), user_agent="gpu-topology-webhook", timeout_s=10) as client:
        certificates = keeper.Keeper(
            client,
            namespace=options.namespace,
            secret=options.secret or f"{options.service}-certificates",
            service=options.service,
            configurations=keeper.configurations(
                mutating=options.mutating_configuration, validating=options.validating_configuration
            ),
            context=context,
        )
        async with (
            serve_health(options.health_port, ready=certificates.ready),
            server.serve(endpoint.handle, port=options.port, context=context),
            asyncio.TaskGroup() as group,
        ):
            group.create_task(certificates.run())


if __name__ == "__main__":
    sys.exit(main())
