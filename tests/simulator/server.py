"""The API server's objects in a story, stamped with the time of its clock."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Final

from dradriver.kube.resources import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from tests.fakes.apistore import Store
from tests.fakes.storeclient import Call
from tests.resources import DEVICE_TAINT_RULES

EPOCH: Final = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
KINDS: Final = (PODS, RESOURCE_CLAIMS, NODES, RESOURCE_SLICES, DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES)


class Server(Store):
    """A store that knows whose request it is doing.

    Attributes:
        acting: The controller's request that is being done, or None.
        serves: Kinds that a client asks for before it reads any; of rules of administrators it has one version.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(lambda: EPOCH + datetime.timedelta(seconds=clock()))
        self.acting: Call | None = None
        self.serves: set[Resource] = {DEVICE_TAINT_RULES}
