"""How a process writes its log: records as text or as JSON, on standard error. ``run.start`` sets it up."""

from __future__ import annotations

import logging
import sys
import time
from typing import Final

import msgspec

_TEXT: Final = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s"
_TIME: Final = "%Y-%m-%dT%H:%M:%S"


class JsonFormatter(logging.Formatter):
    """Formats a log record as one JSON object on a line.

    It has time, level, logger, message and, if there is one, the traceback.
    """

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
    """Formats a log record as one line, with the time in UTC.

    Control characters in messages are escaped, so that no text can forge a line.
    """

    def __init__(self) -> None:
        super().__init__(_TEXT, _TIME)
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name is logging's
        """Return the line of a log record, without its traceback."""
        line = super().formatMessage(record)
        return line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def setup_logging(*, json_format: bool, verbose: bool) -> None:
    """Set the format of log records and send them to standard error.

    The level is INFO, or DEBUG with ``verbose``.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if json_format else TextFormatter())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
