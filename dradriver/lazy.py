"""Names that a package offers and that load their module on first use (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any


def exports(package: str, names: Mapping[str, Collection[str]]) -> Callable[[str], Any]:
    """Return the package's ``__getattr__``, which loads names on first use.

    Args:
        package: Its ``__name__``.
        names: By module below the package the names that it defines.
    """
    module_of = {name: module for module, defined in names.items() for name in defined}

    def getattr_(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return getattr_
