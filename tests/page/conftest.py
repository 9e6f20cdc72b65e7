"""One browser for all tests of a module; each has a page of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, Request, async_playwright, expect

from tests import needs

ARGUMENTS: Final = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip

expect.set_options(timeout=30_000)  # a loaded machine is no failure

Opens = Callable[..., Coroutine[Any, Any, Page]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    path = needs.chromium()
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield started
        await started.close()


@pytest_asyncio.fixture(loop_scope="module")
async def opens(browser: Browser) -> AsyncIterator[Opens]:
    """Opens an address; at the end nothing was asked of anybody else, and nothing went wrong in the page."""
    wrong: list[str] = []
    contexts = []

    async def open_(url: str, **options: Any) -> Page:
        context = await browser.new_context(**({"viewport": {"width": 1400, "height": 900}} | options))
        contexts.append(context)
        page = await context.new_page()

        def asked(request: Request) -> None:
            if not request.url.startswith(url):
                wrong.append(f"asked for {request.url}")

        def said(message: ConsoleMessage) -> None:
            if message.type == "error" and "Failed to load" not in message.text:
                wrong.append(message.text)

        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", asked)
        page.on("console", said)
        await page.goto(url)
        return page

    yield open_
    for context in contexts:
        await context.close()
    assert wrong == []
