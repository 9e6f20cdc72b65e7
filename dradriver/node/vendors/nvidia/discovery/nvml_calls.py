"""Calls functions of ``nvidia-ml-py``, and raises ``NvmlError`` if an answer is impossible.

A broken GPU or library gives wrong answers: numbers far above any product's, or bytes that are not text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dradriver.node.vendors.nvidia.discovery.nvml_interface import (
    LIBRARY,
    LIBRARY_NOT_FOUND,
    UNKNOWN,
    Handle,
    NvmlError,
)


class NvmlCalls:
    """Calls the functions of an open library by their names.

    Attributes:
        module: The module ``pynvml``, also for its constants and structures.
    """

    def __init__(self, module: Any) -> None:
        """Store the module ``pynvml``."""
        self.module = module

    def ask(self, query: str, *arguments: object) -> Any:
        """Call a function of ``pynvml`` and return its answer, if the answer is possible.

        Raises:
            NvmlError: NVML refused, the library is too old to have the function, or the answer is not valid text.
        """
        try:
            return getattr(self.module, query)(*arguments)
        except self.module.NVMLError as error:
            said = str(error)
            if error.value == LIBRARY_NOT_FOUND:
                said = (
                    f"{LIBRARY} was not found. Install the NVIDIA driver, or name its file system with --driver-root."
                )
            raise NvmlError(query, int(error.value), said) from error
        except UnicodeError as error:
            raise NvmlError(query, UNKNOWN, f"the answer is no UTF-8 text: {error}") from error

    def number(self, query: str, *arguments: object, most: int) -> int:
        """Call a function of ``pynvml`` and return its answer, if it is a number from 0 to ``most``.

        Raises:
            NvmlError: See ``ask``; also if the answer is no such number.
        """
        return bounded(query, int(self.ask(query, *arguments)), most)

    def text(self, query: str, *arguments: object) -> str:
        """Call a function of ``pynvml`` and return its answer, if it is printable text.

        Raises:
            NvmlError: See ``ask``; also if the answer is not printable text.
        """
        text = str(self.ask(query, *arguments))
        if not text.isprintable():
            raise NvmlError(query, UNKNOWN, f"{text!r} is no printable text")
        return text

    def fields(self, gpu: Handle, field: int, scopes: Iterable[int], *, most: int) -> list[int | NvmlError]:
        """Return NVML's value of a field for each scope, or the error for this scope.

        NVML is called once for all scopes.

        Args:
            gpu: The GPU's handle.
            field: NVML's number of the field.
            scopes: NVML's scope ids, for example the numbers of NVLinks.
            most: The largest possible value.

        Raises:
            NvmlError: The whole call failed.
        """
        query, values = f"nvmlDeviceGetFieldValues({field})", list[int | NvmlError]()
        for answer in self.ask("nvmlDeviceGetFieldValues", gpu, [(field, scope) for scope in scopes]):
            value = int(answer.value.uiVal)
            if answer.nvmlReturn:
                values.append(NvmlError(query, int(answer.nvmlReturn), "no value"))
            elif not 0 <= value <= most:
                values.append(_nonsense(query, value, most))
            else:
                values.append(value)
        return values

    def field(self, gpu: Handle, field: int, scope: int = 0, *, most: int) -> int:
        """Return NVML's value of a field in one scope, from 0 to ``most``.

        A scope is, for example, the number of an NVLink.

        Raises:
            NvmlError: The call failed, or the field has no valid value.
        """
        (answer,) = self.fields(gpu, field, (scope,), most=most)
        return sure(answer)


def bounded(query: str, value: int, most: int) -> int:
    """Return the value of an NVML call if it is a number from 0 to ``most``.

    ``query`` is the name of the called function, for the error.

    Raises:
        NvmlError: The value is outside this range.
    """
    if not 0 <= value <= most:
        raise _nonsense(query, value, most)
    return value


def _nonsense(query: str, value: int, most: int) -> NvmlError:
    return NvmlError(query, UNKNOWN, f"{value} is no number from 0 to {most}")


def sure(answer: int | NvmlError) -> int:
    """Return an answer of ``NvmlCalls.fields``, or raise the answer if it is an error.

    Raises:
        NvmlError: The answer is this error.
    """
    if isinstance(answer, NvmlError):
        raise answer
    return answer
