"""The driver's library: where it is, and whether the one that this process has loaded is still the installed one."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Final

from dradriver.node.vendors.nvidia.discovery.driver_root import inside
from dradriver.node.vendors.nvidia.discovery.nvml_interface import LIBRARY, LIBRARY_NOT_FOUND, NvmlError

# Where the driver's installers put libraries, below the root of whatever file system holds the driver.
_FOLDERS: Final = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "lib",
    "usr/lib",
    "usr/lib/x86_64-linux-gnu/nvidia/current",  # Debian
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "usr/lib/wsl/lib",
    "usr/lib/nvidia/tesla",  # Bottlerocket
    "usr/local/nvidia/lib64",  # GKE, below the driver's folder
    "home/kubernetes/bin/nvidia/lib64",  # GKE, below the host's root
    "run/opengl-driver/lib",  # NixOS
    "usr/local/glibc/usr/lib",  # Talos
    ".",
)
_LINK_MAP: Final = 2  # RTLD_DI_LINKMAP

_File = tuple[str, int, int]  # real path, device and inode

_loaded: Final[list[tuple[Path, _File | None]]] = []  # this process's library, once there is one: where, and which file


def find_library(driver_root: Path) -> Path:
    """Return the library below the root of a file system that holds the driver, such as ``/run/nvidia/driver``.

    Symbolic links are followed as by a process whose root that is: never out of it.

    Raises:
        NvmlError: It is in none of the places where the driver's installers put it.
    """
    folder = library_folder(driver_root)
    path = inside(driver_root, f"{folder}/{LIBRARY}") if folder is not None else None
    if path is None:
        said = f"no {LIBRARY} below {driver_root}; looked in {', '.join(_FOLDERS)}"
        raise NvmlError("dlopen", LIBRARY_NOT_FOUND, said)
    return path


def library_folder(driver_root: Path) -> str | None:
    """Return the folder with the library, as a path below the driver's root; None where it is in none."""
    for folder in _FOLDERS:
        path = inside(driver_root, f"{folder}/{LIBRARY}")
        if path is not None and os.path.isfile(path):
            return folder
    return None


def real_folder(driver_root: Path) -> str | None:
    """Return the folder with the library after all links, as a path below the driver's root; None where it is in none.

    For a tool that follows links by itself: absolute ones lead it out of the root, as NixOS has them.
    """
    folder = library_folder(driver_root)
    path = inside(driver_root, f"{folder}/{LIBRARY}") if folder is not None else None
    return None if path is None else str(path.parent.relative_to(driver_root))


def replaced(*, driver_root: Path | None = None) -> bool:
    """Return whether a new process would load another driver library than this process has."""
    with contextlib.suppress(NvmlError):
        for at, loaded in _loaded:
            now = _file(at if _by_linker(driver_root) else find_library(driver_root or at))
            return now is not None and now != loaded
    return False


def _by_linker(driver_root: Path | None) -> bool:
    return driver_root is None or str(driver_root) == "/"


def load(driver_root: Path | None) -> None:
    """Load the driver's library, once in a process: the binding opens it by its soname.

    Raises:
        NvmlError: There is none below the driver's root, or it cannot be loaded.
    """
    path = None if driver_root is None or _by_linker(driver_root) else find_library(driver_root)
    if _loaded:
        return
    before = None if path is None else _file(path)
    try:
        library = ctypes.CDLL(str(path or LIBRARY), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        if path is None:
            return  # the binding finds none either, and says so
        raise NvmlError("dlopen", LIBRARY_NOT_FOUND, f"{path}: {error}") from error
    at = path or _place(library)
    _loaded.append((at, before or _file(at)))


def _place(library: ctypes.CDLL) -> Path:
    """Return where the linker found a library: the path before any link is followed."""
    entry = ctypes.POINTER(ctypes.c_char_p)()  # link.h, struct link_map: the address, then the name
    if ctypes.CDLL(None).dlinfo(ctypes.c_void_p(library._handle), _LINK_MAP, ctypes.byref(entry)):
        return Path(LIBRARY)
    return Path(os.fsdecode(entry[1] or b""))


def _file(path: Path) -> _File | None:
    """Return which file is at a path now; None for none."""
    try:
        real = os.path.realpath(path)
        stat = os.stat(real)
    except OSError:
        return None
    return real, stat.st_dev, stat.st_ino
