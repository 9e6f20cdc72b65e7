"""How many pods a gang has: what its author wrote, what its pods say, or what the object that made them says."""

from __future__ import annotations

from typing import Protocol

from dradriver.api import gang_members
from dradriver.api.errors import WordError
from dradriver.api.gang_owners import Alone, Owner
from dradriver.api.gangs import Size
from dradriver.api.pins import Key
from dradriver.cluster.gangs import Membership


class Sizes(Protocol):
    """Says how many pods a gang has, from the object that made them."""

    def size(self, unit: Key, owner: Owner) -> Size | Alone | WordError | None:
        """Return what an object says; None while that is not known yet: then the unit is looked at again."""


def size_of(gang: Key, said: Membership, sizes: Sizes) -> Size | Alone | str:
    """Return how many pods a gang has, that they are none, or why nobody knows; empty while that is being read.

    Args:
        gang: The gang's key.
        said: What its pods say.
        sizes: Reads objects.
    """
    read = said.member.read
    return gang_members.size(said.member, said.wants, None if read is None else sizes.size(gang, read))
