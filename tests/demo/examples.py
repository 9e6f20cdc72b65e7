"""The examples as pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from tests.paths import REPO

EXAMPLES = REPO / "examples"


def documents() -> Iterator[dict[str, Any]]:
    """Yield every object of every example, by file name."""
    for path in sorted(EXAMPLES.glob("*.yaml")):
        yield from (document for document in yaml.safe_load_all(path.read_text()) if document)


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a display name and a pod manifest for each pod that the examples lead to."""
    for document in documents():
        name = document["metadata"]["name"]
        if document["kind"] == "Pod":
            yield name, document
        elif document["kind"] in ("Deployment", "StatefulSet", "Job"):
            spec = document["spec"]
            count = spec.get("replicas", spec.get("parallelism", 1))
            for number in range(count):
                metadata = {"name": name, **spec["template"].get("metadata", {})}
                yield (
                    (f"{name}-{number}" if count > 1 else name),
                    {
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "metadata": metadata,
                        "spec": spec["template"]["spec"],
                    },
                )


def templates() -> dict[str, dict[str, Any]]:
    """Return the hand-written claim templates by name."""
    return {d["metadata"]["name"]: d for d in documents() if d["kind"] == "ResourceClaimTemplate"}
