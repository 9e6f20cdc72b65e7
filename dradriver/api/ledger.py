"""Whose devices they are: what tells one driver's slices, claims and pins from another's."""

from __future__ import annotations

from typing import Final

import msgspec

from dradriver.api import names


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """One driver's books.

    Attributes:
        driver: The driver's name, in slices and in allocations.
        device_class: The DeviceClass that whole GPUs are asked for by.
        attribute_domain: The domain of the attribute that names a GPU.
        uuid_attribute: That attribute, without its domain.
    """

    driver: str
    device_class: str
    attribute_domain: str
    uuid_attribute: str


OURS: Final = Ledger(
    driver=names.DRIVER,
    device_class=names.DEVICE_CLASS,
    attribute_domain=names.ATTRIBUTE_DOMAIN,
    uuid_attribute="uuid",
)
