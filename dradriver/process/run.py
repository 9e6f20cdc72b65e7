"""Runs a process to its end: starts its main coroutine, and stops cleanly on a signal."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from typing import Any

from dradriver.errors import DriverError
from dradriver.process.log_format import setup_logging
from dradriver.process.options import Common

logger = logging.getLogger(__name__)


def start(main: Coroutine[Any, Any, None], options: Common) -> int:
    """Set up logs, run a process's main coroutine, and return its exit status.

    The status is 0 after a normal end or a signal, 1 after an error. ``options`` has the format and the level of the
    log.
    """
    setup_logging(json_format=options.log_format == "json", verbose=options.verbose)
    return run(main)


def run(main: Coroutine[Any, Any, None]) -> int:
    """Run a process's main coroutine to its end and return the exit status.

    SIGTERM and SIGINT cancel the coroutine. The status is 0 if it ends normally, or by that cancellation. It is 1 after
    an error: a ``DriverError`` is logged as its message, any other error with its traceback.
    """
    is_stopped = False  # by a signal

    # Signal handlers need the running loop and the task that they cancel, so they are added inside it.
    async def main_with_signals() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def stop(number: signal.Signals) -> None:
            nonlocal is_stopped
            logger.info("%s: stopping", number.name)
            is_stopped = True
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)
        await main

    try:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(main_with_signals())
    except asyncio.CancelledError:
        return 0 if is_stopped else 1  # else: the coroutine cancelled itself, which is an error
    except BaseExceptionGroup as group:  # main coroutines run their parts in a TaskGroup
        driver_errors, other_errors = group.split(DriverError)
        for error in _single_errors(driver_errors):
            reason = getattr(error, "reason", type(error).__name__)
            logger.error("This process stops: %s: %s", reason, error)
        if other_errors is not None:
            logger.error("This process stops because of an internal error.", exc_info=other_errors)
        return 1
    except DriverError as error:
        logger.error("This process stops: %s: %s", error.reason, error)  # no traceback: the message says what to do
        return 1
    except Exception:
        logger.exception("This process stops because of an internal error.")
        return 1
    return 0


def _single_errors(group: BaseException | None) -> list[BaseException]:
    """Return all errors of an exception group and its inner groups as one list.

    The list is empty for None, and has one item for an error that is no group.
    """
    if group is None:
        return []
    if isinstance(group, BaseExceptionGroup):
        return [leaf for error in group.exceptions for leaf in _single_errors(error)]
    return [group]
