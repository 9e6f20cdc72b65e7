"""The driver's library ``libnvidia-ml``: its path, and whether it was replaced since this process loaded it."""

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
    """Return the path of the driver's library below a root, such as ``/run/nvidia/driver``.

    Symbolic links are resolved below the root, so the result is never outside the root.

    Raises:
        NvmlError: The library is in none of the folders in which the driver's installers put it.
    """
    folder = library_folder(driver_root)
    path = inside(driver_root, f"{folder}/{LIBRARY}") if folder is not None else None
    if path is None:
        said = (
            f"there is no {LIBRARY} below {driver_root} in {', '.join(_FOLDERS)}. Install the "
            "driver, or name its root with --driver-root."
        )
        raise NvmlError("dlopen", LIBRARY_NOT_FOUND, said)
    return path


def library_folder(driver_root: Path) -> str | None:
    """Return the folder of the driver's library, as a path below the driver's root; None if there is no library."""
    for folder in _FOLDERS:
        path = inside(driver_root, f"{folder}/{LIBRARY}")
        if path is not None and os.path.isfile(path):
            return folder
    return None


def real_folder(driver_root: Path) -> str | None:
    """Return the folder of the driver's library with all links resolved, as a path below the driver's root.

    The result is None if there is no library. ``nvidia-ctk`` needs this path, because it follows links without regard
    to the root. Absolute links, as on NixOS, would lead it out of the root.
    """
    folder = library_folder(driver_root)
    path = inside(driver_root, f"{folder}/{LIBRARY}") if folder is not None else None
    return None if path is None else str(path.parent.relative_to(driver_root))


def replaced(*, driver_root: Path | None = None) -> bool:
    """Return whether the installed driver library is another file than the library that this process has loaded."""
    with contextlib.suppress(NvmlError):
        for at, loaded in _loaded:
            now = _file(at if _by_linker(driver_root) else find_library(driver_root or at))
            return now is not None and now != loaded
    return False


def _by_linker(driver_root: Path | None) -> bool:
    return driver_root is None or str(driver_root) == "/"


def load(driver_root: Path | None) -> None:
    """Load the driver's library once in a process.

    After that, ``pynvml`` finds the library by its soname.

    Raises:
        NvmlError: There is no library below the driver's root, or it cannot be loaded.
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
    """Return the path at which the dynamic linker found a library; symbolic links in it are not resolved."""
    entry = ctypes.POINTER(ctypes.c_char_p)()  # link.h, struct link_map: the address, then the name
    if ctypes.CDLL(None).dlinfo(ctypes.c_void_p(library._handle), _LINK_MAP, ctypes.byref(entry)):
        return Path(LIBRARY)
    return Path(os.fsdecode(entry[1] or b""))


def _file(path: Path) -> _File | None:
    """Return real path, device and inode number of the file at a path; None if there is no file."""
    try:
        real = os.path.realpath(path)
        stat = os.stat(real)
    except OSError:
        return None
    return real, stat.st_dev, stat.st_ino
