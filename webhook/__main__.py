"""The program ``python -m webhook``: the admission server."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from dradriver.process import options


class Options(options.Common):
    """The options on the admission server's command line."""

    namespace: str
    service: str
    secret: str
    mutating_configuration: str
    validating_configuration: str
    controller_user: str
    port: int
    certificates: Literal["self-managed", "mounted"]
    certificate_dir: Path | None
    allocating_driver: str
    nvsentinel: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Run the main program, the admission server, until a signal, and return the exit status."""
    args = parse(argv)
    from dradriver.process import run  # --help costs nothing

    return run.start(serve(args), args)


def parse(argv: Sequence[str] | None = None) -> Options:
    """Return the options on the main program's command line.

    If they are wrong, the process prints its usage and ends with status 2.
    """
    made = parser()
    args = made.parse_args(argv, namespace=Options())
    if args.certificates == "mounted" and args.certificate_dir is None:
        made.error("--certificates=mounted needs --certificate-dir.")
    return args


def parser() -> argparse.ArgumentParser:
    """Return the parser of the main program's command line."""
    made = options.parser(
        "python -m webhook",
        "The webhook: admits, changes and refuses pods with gpu.topology annotations.",
        health_port=8083,
        namespace="the service and of the certificates' secret",
    )
    add = made.add_argument
    add("--service", required=True, help="name of the service that the API server calls")
    add("--secret", default="", help="secret that keeps self-managed certificates (default: SERVICE-certificates)")
    add(
        "--mutating-configuration",
        default="",
        metavar="NAME",
        help="MutatingWebhookConfiguration that gets the CA bundle",
    )
    add(
        "--validating-configuration",
        default="",
        metavar="NAME",
        help="ValidatingWebhookConfiguration that gets the CA bundle",
    )
    add("--controller-user", required=True, help="user name of the controller, system:serviceaccount:NAMESPACE:NAME")
    add("--port", type=int, default=8443, help="HTTPS port (default: %(default)s)")
    add("--certificates", choices=("self-managed", "mounted"), default="self-managed")
    add("--certificate-dir", type=Path, metavar="DIR", help="folder with tls.crt and tls.key, for mounted certificates")
    add("--nvsentinel", action="store_true", help="keep dgxc.nvidia.com/devices as the controller wrote it")
    options.add_allocating_driver(made)
    return made


async def serve(args: Options) -> None:
    """Run the main program: serve admission over TLS, with health and metrics, until cancelled.

    The program keeps certificates and policies current.
    """
    from dradriver.api.base.allocating_driver import LEDGERS, bind
    from dradriver.process.health_server import serve_health
    from dradriver.process.policies_file import PoliciesFile
    from webhook import server, tls
    from webhook.admission import Admission

    # The DRA driver that allocates GPUs: this one, NVIDIA's or AMD's. ``current_ledger`` returns it from now on.
    bind(LEDGERS[args.allocating_driver])
    context = tls.server_context()
    policies = PoliciesFile(args.policies)
    admission = Admission(controller_user=args.controller_user, policies=policies, keeps_nvsentinel=args.nvsentinel)
    endpoint = server.Endpoint(admission)

    # 1. Certificates of another program, such as cert-manager, are in mounted files. ``Mounted`` loads them into the
    # TLS context, and again when they change.
    if args.certificates == "mounted":
        from webhook.mounted_certificate import Mounted

        assert args.certificate_dir is not None  # ``parse`` refuses this
        mounted = Mounted(args.certificate_dir, context=context)
        async with (
            serve_health(args.health_port, ready=mounted.ready),
            server.serve(endpoint.handle, port=args.port, context=context),
            asyncio.TaskGroup() as group,
        ):
            group.create_task(mounted.run())
            group.create_task(policies.run())
        return

    # 2. Otherwise the replicas issue their own certificates, keep them in a Secret, and write the CA into the webhook
    # configurations.
    from dradriver.kube.client import Client
    from dradriver.kube.config import load
    from webhook import certificate_keeper

    async with Client(load(args.kubeconfig), user_agent="gpu-topology-webhook", timeout_s=10) as client:
        certificates = certificate_keeper.Keeper(
            client,
            namespace=args.namespace,
            secret=args.secret or f"{args.service}-certificates",
            service=args.service,
            configurations=certificate_keeper.configurations(
                mutating=args.mutating_configuration, validating=args.validating_configuration
            ),
            context=context,
        )
        async with (
            serve_health(args.health_port, ready=certificates.ready),
            server.serve(endpoint.handle, port=args.port, context=context),
            asyncio.TaskGroup() as group,
        ):
            group.create_task(certificates.run())
            group.create_task(policies.run())


if __name__ == "__main__":
    sys.exit(main())
