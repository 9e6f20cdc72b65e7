"""The section ``prices`` of the policies file: the price of an hour of a GPU, by its product."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated

from msgspec import Meta

from dradriver.api.policies.fields import MOST_RULES, Currency, PerHour, Product, Section


class Price(Section, frozen=True):
    """The price of an hour of some GPUs.

    Attributes:
        per_hour: Price of a whole GPU; a share or slice costs its fraction of that.
        products: Full product names or globs; all other products if left out.
    """

    per_hour: PerHour
    products: Annotated[
        tuple[Product, ...], Meta(min_length=1, max_length=64, description="a list with one product or more")
    ] = ()

    def fits(self, product: str) -> bool:
        """Return whether this price applies to GPUs of a product."""
        return not self.products or any(fnmatchcase(product, each) for each in self.products)


class Prices(Section, frozen=True):
    """The prices of all GPUs.

    Attributes:
        currency: Three letters; only shown.
        gpus: The prices; the first one that fits a GPU's product applies.
    """

    currency: Currency = ""
    gpus: Annotated[
        tuple[Price, ...], Meta(max_length=MOST_RULES, description="a list of prices, as [{perHour: 2.5}]")
    ] = ()

    def per_hour(self, product: str) -> float | None:
        """Return the price of an hour of a GPU; None if no price fits.

        If the product is unknown (empty), the first price applies if it is for all products.
        """
        if not product:
            return self.gpus[0].per_hour if self.gpus and not self.gpus[0].products else None
        return next((price.per_hour for price in self.gpus if price.fits(product)), None)
