"""The metrics of the reflectors. ``reflector`` and ``store`` update them."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge

from dradriver.kube.labelled_metrics import Labelled
from dradriver.kube.resources import PLURALS

LISTS: Final = Labelled(
    Counter, "gpu_topology_reflector_lists_total", "LIST requests that a reflector made.", resource=PLURALS
)
WATCHES: Final = Labelled(
    Counter, "gpu_topology_reflector_watches_total", "WATCH requests that a reflector made.", resource=PLURALS
)
RELISTS: Final = Labelled(
    Counter,
    "gpu_topology_reflector_relists_total",
    "Times that a reflector began to read everything, and why.",
    resource=PLURALS,
    reason=("start", "expired", "error", "refresh"),
)
LAST_HEARD: Final = Labelled(
    Gauge,
    "gpu_topology_reflector_last_event_timestamp_seconds",
    "When a list, an event or a bookmark last came, as Unix time. The function time() minus this is the age.",
    resource=PLURALS,
)
OBJECTS: Final = Labelled(Gauge, "gpu_topology_reflector_objects", "Objects in a reflector's store.", resource=PLURALS)
FAILED_HANDLERS: Final = Labelled(
    Counter,
    "gpu_topology_reflector_failed_handlers_total",
    "Changes of objects that this process did not take in, by a bug. The controller's audit corrects this later.",
    resource=PLURALS,
)
