"""Manifests a second of ``gputopo lint``, its start included: ``python -m tests.bench.lint [MANIFESTS]``.

Each is a Job of 60 lines with a template of two containers, all different, in one file of many documents.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from dradriver.api.base import names

COUNT = 1_000


def manifest(number: int) -> str:
    """Return a Job as people write it."""
    container = {
        "name": "main",
        "image": "registry.example.com/team/train:1.2.3",
        "command": ["torchrun", "--nproc-per-node=4", "train.py", f"--run={number}"],
        "env": [{"name": f"SETTING_{n}", "value": f"value {n}"} for n in range(8)],
        "resources": {
            "limits": {names.GPU_RESOURCE: 4, "memory": "64Gi"},
            "requests": {"cpu": "8", names.GPU_RESOURCE: 4},
        },
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    words = {names.POLICY: "nvlink", names.PREFERRED: "same-numa"}
    template = {
        "metadata": {"annotations": words, "labels": {"app": f"train-{number}"}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [container, {"name": "log", "image": "busybox", "args": ["tail", "-f", "/data/log"]}],
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}],
        },
    }
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"train-{number}", "namespace": "team"}}
    return str(yaml.safe_dump(job | {"spec": {"backoffLimit": 3, "template": template}}, sort_keys=False))


def main(count: int) -> None:
    """Write the manifests and time the command on them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "jobs.yaml"
        text = "---\n".join(manifest(number) for number in range(count))
        file.write_text(text)
        for output in ("table", "json", "yaml"):
            line = [str(Path(sys.executable).parent / "gputopo"), "lint", str(file), "-o", output]
            began = time.perf_counter()
            done = subprocess.run(line, capture_output=True, check=True)
            took_s = time.perf_counter() - began
            print(
                f"-o {output:5}  {count} manifests of {text.count(chr(10)) // count} lines in {took_s:.2f} s: "
                f"{count / took_s:.0f} a second, {len(done.stdout) >> 10} KiB written"
            )


if __name__ == "__main__":
    main(*(int(given) for given in sys.argv[1:2] or [str(COUNT)]))
