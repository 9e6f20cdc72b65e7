from __future__ import annotations

import asyncio
import os
import signal

import pytest

from dradriver.errors import DriverError
from dradriver.process.run import run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_cancels_main_and_is_a_clean_stop(number: signal.Signals) -> None:
    cleaned = []

    async def main() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    assert run(main()) == 0
    assert cleaned


def test_a_main_that_ends_is_a_clean_stop() -> None:
    async def main() -> None:
        return

    assert run(main()) == 0


def test_a_known_error_is_logged_as_its_message_only(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())

    async def fail() -> None:
        raise DriverError("write --port=1")

    assert run(main()) == 1
    assert [(r.getMessage(), r.exc_info) for r in caplog.records] == [
        ("This process stops: DriverError: write --port=1", None)
    ]


def test_an_unknown_error_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        raise RuntimeError("surprise")

    assert run(main()) == 1
    assert caplog.records[0].exc_info is not None


def test_a_cancellation_that_no_signal_asked_for_is_a_failure() -> None:
    async def main() -> None:
        raise asyncio.CancelledError

    assert run(main()) == 1
