"""`python -m tests.cluster [--name NAME] COMMAND`: runs a cluster by hand, or builds what clusters are made of.

COMMAND is up, down, status, build [VERSION...|all], load IMAGE.tar..., kubectl ... or helm ....
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests import deploy
from tests.cluster import build, requirements
from tests.cluster.errors import ClusterError, Unavailable
from tests.cluster.local import Cluster
from tests.cluster.settings import EVERYDAY_VERSIONS, KUBERNETES_VERSIONS, NVIDIA_TOOLKITS


def main(arguments: list[str]) -> int:
    """Runs one command. Returns the exit status."""
    cluster = Cluster()
    if arguments[:1] == ["--name"] and len(arguments) > 1:
        cluster, arguments = Cluster(arguments[1]), arguments[2:]
    command, *rest = arguments or ["help"]
    match command:
        case "up":
            cluster.up()
            print(f"export KUBECONFIG={cluster.kubeconfig}")
        case "down":
            cluster.down()
        case "status":
            print(cluster.status())
            return 0 if cluster.is_up() else 1
        case "build":
            requirements.prepare_browser()
            requirements.prepare_compiler()
            for version in KUBERNETES_VERSIONS if rest == ["all"] else rest or EVERYDAY_VERSIONS:
                requirements.prepare(version)
                print(*(target.folder for target in build.targets(version)), sep="\n")
            for version in NVIDIA_TOOLKITS:
                print(build.nvidia_toolkit(version).ensure())
            print(build.prometheus().ensure())
            print(deploy.build_image())
        case "load" if rest:
            for tar in rest:
                cluster.load_image(Path(tar))
        case "kubectl" | "helm":
            tool = cluster.kubectl_command if command == "kubectl" else str(build.helm().folder / "helm")
            environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
            os.execve(tool, [tool, *rest], environment)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Unavailable as error:
        sys.exit(f"no cluster here: {error}")
    except (ClusterError, ValueError, OSError) as error:
        sys.exit(str(error))
