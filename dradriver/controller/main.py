"""The command ``python -m dradriver controller``: reads its options and runs the controller."""

from __future__ import annotations

import asyncio
from typing import Final

from dradriver import __version__
from dradriver.process import options

LEASE: Final = "gpu-topology-controller"


class Options(options.Common):
    """The options of the command line."""

    namespace: str
    identity: str
    policies_configmap: str
    lease_duration: int  # seconds; all numbers below, too
    renew_deadline: float
    retry_period: float
    placement_timeout: float
    unschedulable_timeout: float
    suspendable: str
    allocating_driver: str
    end_idle: bool
    daemon_set: str
    owner: str
    keep_usage: bool
    nvsentinel: bool


def main(argv: list[str]) -> int:
    """Run the controller process until it is stopped, and return its exit status."""
    args = parse(argv)
    from dradriver.process import run  # late, so that --help is fast

    return run.start(serve(args), args)


async def serve(args: Options) -> None:
    """Run the controller process until cancelled.

    It watches objects, takes part in the leader election, and works while it is the leader.

    Raises:
        ConfigError: The API server's address or credentials cannot be read.
    """
    from dradriver.api.base import names
    from dradriver.api.base.allocating_driver import LEDGERS, bind
    from dradriver.cluster.gpus.tabulating import Tabulator
    from dradriver.controller.controller import Controller
    from dradriver.controller.features.recorders import recorders
    from dradriver.controller.features.registry import FeatureOptions
    from dradriver.controller.loop import policies
    from dradriver.controller.steps.deadlines import Deadlines
    from dradriver.kube import config, leader_thread
    from dradriver.kube.client import Client
    from dradriver.kube.leader import ElectionLease, LeaderElector, Timings
    from dradriver.kube.server_clock import ServerClock
    from dradriver.process import cyclic_gc
    from dradriver.process.health_server import serve_health

    bind(LEDGERS[args.allocating_driver])
    server = config.load(args.kubeconfig)
    async with Client(server, user_agent=f"gpu-topology-controller/{__version__}") as client:
        controller = Controller(
            client,
            deadlines=Deadlines(promise_s=args.placement_timeout, unschedulable_s=args.unschedulable_timeout),
            recorders=recorders(client, instance=args.identity),
            suspendable=tuple(filter(None, args.suspendable.split(","))),
            tables=Tabulator(),
            features=FeatureOptions(
                usage_namespace=args.namespace,
                reservation_namespace=args.namespace,
                ends_idle=args.end_idle,
                daemon_set=args.daemon_set,
                owner=args.owner,
                keeps_usage=args.keep_usage,
            ),
            clock=ServerClock(lambda: (client.connection.date, client.connection.date_at)),
            tells_nvsentinel=args.nvsentinel,
        )
        policies_file = policies.follow(
            controller.follow,
            client,
            args.policies,
            namespace=args.namespace,
            configmap=args.policies_configmap,
            instance=args.identity,
        )
        progress = leader_thread.Progress(args.renew_deadline / 2)

        async def election(work: leader_thread.Work) -> None:
            # The election has an event loop of its own, and connections belong to a loop.
            lease_server = config.load(args.kubeconfig)
            async with Client(lease_server, user_agent=f"gpu-topology-controller/{__version__}") as for_lease:
                elector = LeaderElector(
                    for_lease,
                    ElectionLease(args.namespace, LEASE, args.policies_configmap),
                    identity=args.identity,
                    timings=Timings(
                        lease_duration_s=args.lease_duration,
                        renew_deadline_s=args.renew_deadline,
                        retry_period_s=args.retry_period,
                    ),
                    makes_progress=progress.is_recent,
                    annotations=lambda: {names.POLICIES: f"{args.identity}={policies_file.in_force.fingerprint}"},
                )
                await elector.run(work)

        async def lead() -> None:
            await policies_file.read_again()
            await controller.work()

        async with serve_health(args.health_port, ready=controller.ready), asyncio.TaskGroup() as tasks:
            tasks.create_task(policies_file.run())
            tasks.create_task(controller.watch())
            # A leader must be able to work at once, and by the policies that count now.
            await controller.synced()
            await policies_file.first_read()
            cyclic_gc.settle()
            tasks.create_task(cyclic_gc.collect())
            tasks.create_task(progress.run())
            await leader_thread.elect(election, lead)


def parse(argv: list[str]) -> Options:
    """Return the controller's options.

    A wrong option ends the process with an explanation.
    """
    parser = options.parser(
        "python -m dradriver controller",
        "Chooses GPUs for gated pods and writes their claims.",
        health_port=8082,
        namespace="the election's lease",
    )
    parser.add_argument("--identity", required=True, help="this replica's name in the election: its pod's name")
    parser.add_argument(
        "--policies-configmap",
        default="",
        metavar="NAME",
        help=("ConfigMap of --policies, to be watched, and for Events about a bad one. Default: only the file"),
    )
    parser.add_argument("--lease-duration", type=int, default=15, metavar="S", help="default 15")
    parser.add_argument("--renew-deadline", type=float, default=10, metavar="S", help="default 10")
    parser.add_argument("--retry-period", type=float, default=2, metavar="S", help="default 2")
    parser.add_argument(
        "--placement-timeout",
        type=float,
        default=30,
        metavar="S",
        help="how long GPUs are kept for a pod that the scheduler does not bind (default 30)",
    )
    parser.add_argument(
        "--unschedulable-timeout",
        type=float,
        default=5,
        metavar="S",
        help="the same once the scheduler says that it finds no room for the pod (default 5)",
    )
    parser.add_argument(
        "--end-idle",
        action="store_true",
        help=("warn and end pods with gpu.topology/idle-timeout whose GPUs are idle. Default: only report them"),
    )
    parser.add_argument(
        "--suspendable",
        default="",
        metavar="KINDS",
        help="kinds of owners, as Job,JobSet, that may be suspended for pods of higher priority (default: none)",
    )
    parser.add_argument(
        "--daemon-set",
        default="",
        metavar="NAME",
        help="DaemonSet of the node agents, for an Event if its namespace forbids them (default: none)",
    )
    parser.add_argument(
        "--owner",
        default="",
        metavar="CLUSTERROLE",
        help="ClusterRole that owns what the controller creates, so that both are deleted together (default: no owner)",
    )
    parser.add_argument(
        "--keep-usage", action="store_true", help="GPU time in ConfigMaps has no owner, and outlasts an uninstallation"
    )
    parser.add_argument(
        "--nvsentinel",
        action="store_true",
        help="also write the GPUs of placed pods into dgxc.nvidia.com/devices, for NVSentinel",
    )
    options.add_allocating_driver(parser)
    args = parser.parse_args(argv, namespace=Options())
    if not 0 < 1.2 * args.retry_period < args.renew_deadline < args.lease_duration:
        parser.error("--retry-period, --renew-deadline and --lease-duration must grow in this order, as 2, 10 and 15")
    return args
