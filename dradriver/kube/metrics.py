"""Metrics of the reflectors."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge

from dradriver.kube import resources
from dradriver.kube.labels import Labelled

_KINDS = [value for value in vars(resources).values() if isinstance(value, resources.Resource)]
_KINDS += resources.DEVICE_TAINT_RULES
_PLURALS: Final = sorted(kind.plural for kind in _KINDS)

LISTS: Final = Labelled(
    Counter, "gpu_topology_reflector_lists_total", "LIST requests that a reflector made.", resource=_PLURALS
)
WATCHES: Final = Labelled(
    Counter, "gpu_topology_reflector_watches_total", "WATCH requests that a reflector made.", resource=_PLURALS
)
RELISTS: Final = Labelled(
    Counter,
    "gpu_topology_reflector_relists_total",
    "Times that a reflector began to read everything, and why.",
    resource=_PLURALS,
    reason=("start", "expired", "error", "refresh"),
)
LAST_HEARD: Final = Labelled(
    Gauge,
    "gpu_topology_reflector_last_event_timestamp_seconds",
    "When a list, an event or a bookmark last came; time() minus this is the age.",
    resource=_PLURALS,
)
OBJECTS: Final = Labelled(Gauge, "gpu_topology_reflector_objects", "Objects in a reflector's store.", resource=_PLURALS)
