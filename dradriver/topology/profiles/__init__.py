"""Machine profiles: machines as data, one YAML file each, every figure with its source next to it.

profile_fields  the fields of a profile
profile_reader  converts a profile to a machine
simulated_mig_profiles  MIG profiles of products, for simulated machines
"""

from __future__ import annotations

import difflib
import functools
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Machine
from dradriver.topology.vendors import NVIDIA, VENDORS

if TYPE_CHECKING:
    from dradriver.topology.profiles.profile_reader import Description


_KEPT = 64  # machines that are kept, with their seeds


def names(vendor: str = "") -> tuple[str, ...]:
    """Return the names of all machine profiles, or of the profiles of one vendor, sorted."""
    return tuple(sorted(name for name, (_, whose) in _files().items() if vendor in ("", whose)))


@functools.cache
def _files() -> dict[str, tuple[Traversable, str]]:
    """Return the file and the vendor of every profile, by the profile's name.

    NVIDIA's profiles are in this folder, the profiles of each other vendor in a folder of its own.
    """
    here = resources.files(__name__)
    folders = [(here if word == NVIDIA.word else here / word, word) for word in VENDORS]
    return {
        file.name.removesuffix(".yaml"): (file, word)
        for folder, word in folders
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    }


@functools.lru_cache(maxsize=_KEPT)
def load(name: str, *, seed: str = "") -> Machine:
    """Return the machine of a profile.

    The uuids of its GPUs depend only on ``name`` and ``seed``.

    Raises:
        TopologyError: There is no such profile; the message lists all.
    """
    files = _files()
    if name not in files:
        near = difflib.get_close_matches(name, files, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise TopologyError(f"{name!r} is not a profile{hint}. Profiles: {', '.join(names())}.")
    return _read(name).machine(seed)


@functools.cache
def _read(name: str) -> Description:
    """Return the parsed file of a profile.

    The result is cached: parsing takes 20 ms, and a simulation loads a machine for each node.
    """
    # The import is local because this module needs PyYAML, and programs that load no profile do without PyYAML.
    from dradriver.topology.profiles import profile_reader

    file, _ = _files()[name]
    return profile_reader.Description(file.read_text("utf-8"), source=file.name)
