"""Machines as data: one YAML file each, every figure with its source beside it.

entries  the fields of a profile
schema   from a profile to a machine
mig      MIG profiles of products, for simulated machines
"""

from __future__ import annotations

import difflib
from importlib import resources

from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Machine


def names() -> tuple[str, ...]:
    """Return the names of all profiles, sorted."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml")))


def load(name: str, *, seed: str = "") -> Machine:
    """Return the profile's machine; its uuids depend on ``name`` and ``seed`` alone, and two seeds never share one.

    Raises:
        TopologyError: No such profile; the message lists all.
    """
    known = names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise TopologyError(f"{name!r} is no profile; {hint}there are {', '.join(known)}")
    from dradriver.topology.profiles import schema  # here, for it brings yaml, which other machines do not need

    file = resources.files(__name__) / f"{name}.yaml"
    return schema.read(file.read_text("utf-8"), source=file.name, seed=seed)
