"""Pods and their owners as running programs made them: what the reading of gangs is held against.

``python -m tests.captured`` writes those of Kubernetes anew, made by the control plane of each tested version, and
``python -m tests.captured.kubeflow`` those of the training operator, for whoever has it, and
``python -m tests.captured.owners`` those of JobSet, LeaderWorkerSet, the MPI operator and trainer.
``tests/fakes/owners.py`` has stories that were not captured, written after the source of the programs that make them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent / "files"


def captured() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return what was captured, by program and version: ``pods`` and ``owners``."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
