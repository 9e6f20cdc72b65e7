"""Lets a package offer names whose modules are loaded only on first use (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any


def exports(package: str, names: Mapping[str, Collection[str]]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__`` that imports a module when its names are first used.

    Args:
        package: The package's ``__name__``.
        names: For each module, by its name in the package: the names that this module defines and the package offers.
    """
    module_of = {name: module for module, defined in names.items() for name in defined}

    def getattr_(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return getattr_
