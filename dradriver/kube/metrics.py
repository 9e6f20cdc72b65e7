"""Metrics of the reflectors. The only label from outside is the resource's plural, which this code defines."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge

LISTS: Final = Counter("gpu_topology_reflector_lists", "LIST requests that a reflector made.", ["resource"])
WATCHES: Final = Counter("gpu_topology_reflector_watches", "WATCH requests that a reflector made.", ["resource"])
RELISTS: Final = Counter(
    "gpu_topology_reflector_relists",
    "Times that a reflector began to read everything, and why.",
    ["resource", "reason"],
)
LAST_HEARD: Final = Gauge(
    "gpu_topology_reflector_last_event_timestamp_seconds",
    "When a list, an event or a bookmark last came; time() minus this is the age.",
    ["resource"],
)
OBJECTS: Final = Gauge("gpu_topology_reflector_objects", "Objects in a reflector's store.", ["resource"])
