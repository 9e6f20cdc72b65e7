"""Take the screenshots of the page in docs/images: the page itself, in a browser, on a cluster in memory.

Usage: python -m docs.screenshots

It needs the Chromium of tests/page. A picture shows only the upper part of a view, or the detail that is open, so that
the file stays small.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from playwright.async_api import Browser, async_playwright

from tests import needs
from tests.fakes.commands import run_all
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.serving import served
from tests.page.conftest import ARGUMENTS

FOLDER: Final = Path(__file__).resolve().parent / "images"
MOST_BYTES: Final = 60 * 1024
# The file's name, the part of the address that opens a view, and how much of it is shown, in pixels.
VIEWS: Final = (("page-cluster", "", 500), ("page-node", "#node=node-a", 620))
WIDTH: Final = 1100


async def cluster() -> GpuCluster:
    """Return the demo's two nodes with pods that have GPUs."""
    made = GpuCluster()
    made.node("node-a", "dgx1-v100")
    made.node("node-b", "dgx-h100")
    for name, gpus in (("nvlink-quad", 4), ("train", 4), ("best-effort", 2)):
        made.pod(name, gpus, wishes={"required": "nvlink"})
        await run_all(made)
    return made


async def take(browser: Browser, url: str) -> None:
    """Write a picture of each view.

    Raises:
        SystemExit: A picture is too large.
    """
    for name, view, height in VIEWS:
        page = await browser.new_page(viewport={"width": WIDTH, "height": height}, color_scheme="light")
        await page.goto(url + view)
        await page.wait_for_selector("main :is(.tile,.shown,table)")
        await page.wait_for_timeout(1000)  # what is drawn a moment later
        path = FOLDER / f"{name}.png"
        detail = page.locator("#detail")
        await (detail if await detail.is_visible() else page).screenshot(path=path)
        await page.close()
        if path.stat().st_size > MOST_BYTES:
            raise SystemExit(f"{path} has {path.stat().st_size} bytes: show less of the view")


async def main() -> None:
    """Serve the page and take its pictures."""
    async with async_playwright() as playwright, served((await cluster()).store) as page:
        browser = await playwright.chromium.launch(executable_path=needs.chromium(), args=list(ARGUMENTS))
        await take(browser, page.url)
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
