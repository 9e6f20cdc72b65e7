"""What every process does alike: logging, and stopping cleanly on a signal."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from dradriver.errors import DriverError
from dradriver.process.options import Common

logger = logging.getLogger(__name__)

_TEXT: Final = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s"
_TIME: Final = "%Y-%m-%dT%H:%M:%S"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message and, where there is one, the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the log record as one line of JSON."""
        line = {
            "time": f"{time.strftime(_TIME, time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class TextFormatter(logging.Formatter):
    """One line a record in UTC; control characters in messages are escaped, so that no text can forge a line."""

    def __init__(self) -> None:
        super().__init__(_TEXT, _TIME)
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name is logging's
        """Return the log record's line without its traceback."""
        line = super().formatMessage(record)
        return line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def setup_logging(*, json_format: bool, verbose: bool) -> None:
    """Send log records to standard error, from INFO or, where verbose, from DEBUG on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if json_format else TextFormatter())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def start(main: Coroutine[Any, Any, None], options: Common) -> int:
    """Log as the options say, run a process's main coroutine to its end, and return the exit status as `run` does."""
    setup_logging(json_format=options.log_format == "json", verbose=options.verbose)
    return run(main)


def run(main: Coroutine[Any, Any, None]) -> int:
    """Run a process's main coroutine to its end and return the exit status.

    SIGTERM and SIGINT cancel the coroutine. The status is 0 if it ends normally, or by that cancellation. It is 1 after
    an error: a ``DriverError`` is logged as its message, any other error with its traceback.
    """
    is_stopped = False

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
        return 0 if is_stopped else 1
    except BaseExceptionGroup as group:
        driver_errors, other_errors = group.split(DriverError)
        for error in _leaves(driver_errors):
            logger.error("%s: %s", getattr(error, "reason", type(error).__name__), error)
        if other_errors is not None:
            logger.error("stopped by an error", exc_info=other_errors)
        return 1
    except DriverError as error:
        logger.error("%s: %s", error.reason, error)  # no traceback: the message says what to do
        return 1
    except Exception:
        logger.exception("stopped by an error")
        return 1
    return 0


def _leaves(group: BaseException | None) -> list[BaseException]:
    if group is None:
        return []
    if isinstance(group, BaseExceptionGroup):
        return [leaf for error in group.exceptions for leaf in _leaves(error)]
    return [group]
