"""The page as its readers have it: in a real browser, on an API server of a cluster in memory."""

from __future__ import annotations

import asyncio
import math
import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from dradriver.api.slices import resource_slices
from dradriver.cli.page import page_server
from dradriver.cli.page.guard import Guard
from dradriver.cli.page.page_pieces import encoder
from dradriver.cli.page.page_server import Page as Shown
from dradriver.kube.resources import NODES, PODS, RESOURCE_SLICES
from tests.fakes.commands import CommandLine, run_all
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.ports import kept_port
from tests.fakes.serving import fleet, served, serving
from tests.page.conftest import Opens

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

ZONE = "topology.kubernetes.io/zone"
EVIL = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"


@pytest.fixture
def cluster() -> GpuCluster:
    made = GpuCluster()
    made.node("n1", "dgx1-v100", labels={ZONE: "eu-1"})
    made.node("n2", "dgx-h100", labels={ZONE: "eu-1"})
    made.node("n10", "dgx1-v100", labels={ZONE: "eu-2"}, unschedulable=True)
    made.rival("old", "n1", range(6))
    return made


def tile(page: Page, node: str) -> Any:
    return page.locator(f'[data-node="{node}"]')


def stat(page: Page, name: str) -> Any:
    return page.locator(f".stat-{name} .big")


async def test_nodes_stand_in_their_zones_with_their_gpus(cluster: GpuCluster, opens: Opens) -> None:
    async with served(cluster.store) as made:
        page = await opens(made.url)
        await expect(page.locator(".zone h3")).to_have_text(["Zone eu-1", "Zone eu-2"])
        await expect(page.locator(".zone header p")).to_have_text(
            ["2 nodes, 10 of 16 GPUs free", "1 node, 0 of 8 GPUs free"]
        )
        await expect(page.locator(".tile .line b")).to_have_text(["n1", "n2", "n10"])
        await expect(page.locator(".tile .line span")).to_have_text(["2 free", "8 free", "cordoned"])
        await expect(tile(page, "n1").locator(".cell.a")).to_have_count(6)
        await expect(tile(page, "n1").locator(".cell.f")).to_have_count(2)
        await expect(stat(page, "free")).to_have_text("10 of 24 GPUs free")
        label = await tile(page, "n1").get_attribute("aria-label")
        assert label == "n1, Tesla V100-SXM2-32GB, of 8 GPUs 2 free, 6 allocated"
        assert "default/old, a claim without pod: 6 GPUs" in (await tile(page, "n1").get_attribute("title") or "")


def taint(cluster: GpuCluster, node: str, *indices: int) -> None:
    """Have a node's agent say that some of its GPUs have fallen off the bus."""
    named = {resource_slices.device_name(gpu.uuid) for gpu in cluster.machines[node].gpus if gpu.index in indices}
    for piece in [one for one in cluster.all(RESOURCE_SLICES) if one["spec"]["nodeName"] == node]:
        for device in piece["spec"]["devices"]:
            if device["name"] in named:
                device["taints"] = [{"key": "gpu.topology/xid", "value": "79", "effect": "NoSchedule"}]
        cluster.put(RESOURCE_SLICES, piece)


SHAPE = """(cell) => {
  const style = getComputedStyle(cell);
  return { colour: style.backgroundColor, pattern: style.backgroundImage !== "none", round: style.borderRadius };
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_an_unhealthy_gpu_has_another_colour_and_shape_than_one_that_is_held(
    cluster: GpuCluster, opens: Opens, scheme: Any
) -> None:
    taint(cluster, "n1", 5, 7)  # 0 to 5 are held
    async with served(cluster.store) as made:
        page = await opens(made.url, color_scheme=scheme)
        cells = tile(page, "n1").locator(".cell")
        await expect(cells).to_have_class([*["cell a"] * 5, "cell x", "cell f", "cell u"])
        await expect(tile(page, "n1").locator(".line span")).to_have_text("2 unhealthy")
        label = await tile(page, "n1").get_attribute("aria-label")
        assert (
            label == "n1, Tesla V100-SXM2-32GB, of 8 GPUs 1 free, 5 allocated, 1 unhealthy, 1 unhealthy and allocated"
        )
        held, both, unhealthy = [await cells.nth(at).evaluate(SHAPE) for at in (0, 5, 7)]
        for wrong in (both, unhealthy):
            assert wrong["colour"] != held["colour"]
            assert (wrong["round"], wrong["pattern"]) == ("50%", True) != (held["round"], held["pattern"])
        assert both["colour"] != unhealthy["colour"]
        await expect(page.locator(".legend")).to_contain_text("1 unhealthy and allocated")
        assert await page.evaluate(CONTRASTS) == []


async def test_the_health_tab_has_the_number_of_unhealthy_gpus(cluster: GpuCluster, opens: Opens) -> None:
    async with served(cluster.store) as made:
        page = await opens(made.url)
        badge = page.locator("#count-health")
        await expect(tile(page, "n1")).to_be_visible()
        await expect(badge).to_have_text("")
        await expect(badge).to_be_hidden()
        taint(cluster, "n1", 5, 7)
        await expect(badge).to_have_text("2")
        await expect(page.get_by_role("tab", name="Health")).to_have_attribute("title", "2 GPUs are unhealthy or lost")
        await page.get_by_role("tab", name="Health").click()
        await expect(page.locator("main")).to_contain_text("2 GPUs are out of service")


async def test_what_changes_is_seen_without_a_reload(cluster: GpuCluster, opens: Opens) -> None:
    async with served(cluster.store) as made:
        page = await opens(made.url)
        await expect(tile(page, "n2").locator(".line span")).to_have_text("8 free")
        await page.evaluate("window.sameDocument = true")
        cluster.rival("new", "n2", range(5))
        await expect(tile(page, "n2").locator(".line span")).to_have_text("3 free")
        await expect(stat(page, "free")).to_have_text("5 of 24 GPUs free")
        cluster.pod("later", 8, wishes={"required": "nvlink"})
        await expect(page.locator("#count-waiting")).to_have_text("1")
        cluster.node("n3", "dgx1-v100")
        await expect(tile(page, "n3").locator(".line span")).to_have_text("8 free")
        cluster.remove(NODES, "n2")
        for piece in [one for one in cluster.all(RESOURCE_SLICES) if one["spec"]["nodeName"] == "n2"]:
            cluster.remove(RESOURCE_SLICES, piece["metadata"]["name"])
        await expect(tile(page, "n2")).to_have_count(0)
        assert await page.evaluate("window.sameDocument") is True


async def test_why_a_pod_waits_is_what_explain_says(cluster: GpuCluster, opens: Opens, tmp_path: Any) -> None:
    cluster.rival("more", "n2", range(3))
    cluster.pod("waits", 8, wishes={"required": "nvlink"})
    await run_all(cluster)
    async with served(cluster.store) as made:
        told = await CommandLine(made.api, tmp_path).data("explain", "waits")
        page = await opens(made.url)
        await page.get_by_role("tab", name="Waiting").click()
        row = page.locator(".waiting tbody tr")
        await expect(row).to_have_count(1)
        await expect(row.locator("td").first).to_have_text("1")
        await expect(row).to_contain_text(told["recorded_reason"])
        await page.get_by_role("button", name="default/waits").click()
        detail = page.locator("#detail-body")
        await expect(detail).to_contain_text(told["reason"])
        await expect(detail).to_contain_text("What would help")
        for option in told["would_help"]:
            await expect(detail).to_contain_text(option["node"])
            for owner in option["owners"]:
                await expect(detail).to_contain_text(f"{owner['namespace']}/{owner['claim']}")
        await expect(page.locator("#detail-title")).to_have_text("Pod default/waits")


INSIDE_WORDS = """button => {
  const text = button.firstChild, found = [];
  let before;
  for (let at = 0; at < text.length; at++) {
    const range = document.createRange();
    range.setStart(text, at);
    range.setEnd(text, at + 1);
    const top = range.getBoundingClientRect().top;
    const inside = before !== undefined && top > before + 2 && /[a-z0-9]/.test(text.data[at - 1]);
    if (inside) found.push(text.data.slice(0, at));
    before = top;
  }
  return found;
}"""


@pytest.mark.parametrize("width", [400, 950, 1200, 1400])
async def test_a_long_reason_breaks_no_pods_name_inside_a_word(cluster: GpuCluster, opens: Opens, width: int) -> None:
    names = ("short", "llama-pretraining-worker-0123")
    for name in names:
        cluster.pod(name, 8, wishes={"required": "nvlink", "product": "*V100*"})
    await run_all(cluster)
    for name in names:
        pod = cluster.get_pod(name)
        reason = "Waiting: the gang needs 2 x 4 GPUs; 3 GPUs are free on 2 nodes (largest NVLink set: 2). "
        pod["metadata"]["annotations"]["gpu.topology/reason"] = reason * 4
        cluster.put(PODS, pod)
    async with served(cluster.store) as made:
        page = await opens(made.url, viewport={"width": width, "height": 900})
        await page.get_by_role("tab", name="Waiting").click()
        links = page.locator(".waiting .link")
        await expect(links).to_have_count(2)
        assert [await link.evaluate(INSIDE_WORDS) for link in await links.all()] == [[], []]
        await links.last.click()
        await expect(page.locator(".detail")).to_be_visible()
        assert [await link.evaluate(INSIDE_WORDS) for link in await links.all()] == [[], []]
        wide = await page.locator("main").evaluate("main => main.scrollWidth <= main.clientWidth")
        assert wide, "the table is not wider than its place"


async def test_an_opened_node_shows_its_matrix_and_follows_it(cluster: GpuCluster, opens: Opens) -> None:
    async with served(cluster.store) as made:
        page = await opens(made.url)
        await tile(page, "n1").click()
        await expect(page.locator("#detail-title")).to_have_text("n1: 8 x Tesla V100-SXM2-32GB, 2 free")
        await expect(page.locator("#detail-body svg[role=img]:visible")).to_have_count(1)
        await expect(page.locator("#detail-body")).to_contain_text("bars 8 4 2: groups of so many")
        held = page.locator("#detail-body table").nth(1).locator("tbody tr")
        await expect(held).to_have_text(["0-5default/old, a claim without pod", "6, 7free"])
        cluster.rival("new", "n1", [6])
        await expect(page.locator("#detail-title")).to_have_text("n1: 8 x Tesla V100-SXM2-32GB, 1 free")
        await expect(held).to_have_count(3)
        assert "node=n1" in page.url
        await page.reload()
        await expect(page.locator("#detail-title")).to_have_text("n1: 8 x Tesla V100-SXM2-32GB, 1 free")


async def test_anything_that_is_written_is_text(cluster: GpuCluster, opens: Opens) -> None:
    cluster.node("n1", "dgx1-v100", labels={ZONE: EVIL})
    long = "x" * 10_000
    cluster.rival(EVIL, "n2", [0])
    cluster.rival(long, "n2", [1])
    cluster.pod("later", 2, namespace=EVIL)
    pod = cluster.admitted(long, 8)
    pod["metadata"]["annotations"]["gpu.topology/reason"] = EVIL + long
    cluster.put(_pods(), pod)
    async with served(cluster.store) as made:
        page = await opens(made.url)
        await expect(page.locator(".zone h3").first).to_contain_text(EVIL)
        await tile(page, "n2").click()
        await expect(page.locator("#detail-body")).to_contain_text(f"default/{EVIL}, a claim without pod")
        await expect(page.locator("#detail-body")).to_contain_text(long)
        await page.get_by_role("tab", name="Waiting").click()
        await expect(page.locator(".waiting")).to_contain_text(EVIL)
        for tab in ("Free sets", "Tenants", "Idle", "Health"):
            await page.get_by_role("tab", name=tab).click()
            await expect(page.locator("main .shown")).to_be_visible()
        assert await page.evaluate("window.hacked") is None
        assert await page.locator("script").count() == 1
        assert await page.locator("img").count() == 1
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def _pods() -> Any:
    from dradriver.kube.resources import PODS

    return PODS


async def test_everything_is_reached_by_keys(cluster: GpuCluster, opens: Opens) -> None:
    async with served(cluster.store) as made:
        page = await opens(made.url)
        await expect(tile(page, "n1")).to_be_visible()
        await page.keyboard.press("/")
        await expect(page.locator("#filter")).to_be_focused()
        await page.keyboard.type("h100")
        await expect(page.locator(".tile")).to_have_count(1)
        await page.keyboard.press("Escape")
        await expect(page.locator(".tile")).to_have_count(3)
        await page.keyboard.type("free:3")
        await expect(page.locator(".tile .line b")).to_have_text(["n2"])
        await page.keyboard.press("Escape")
        await page.keyboard.press("Escape")
        await expect(tile(page, "n1")).to_be_focused()
        await page.keyboard.press("ArrowRight")
        await expect(tile(page, "n2")).to_be_focused()
        await page.keyboard.press("ArrowDown")
        await expect(tile(page, "n10")).to_be_focused()
        await page.keyboard.press("Home")
        await page.keyboard.press("Enter")
        await expect(page.locator("#detail")).to_be_focused()
        await expect(page.locator("#detail-title")).to_contain_text("n1: 8 x")
        await expect(tile(page, "n1")).to_have_attribute("aria-expanded", "true")
        await page.keyboard.press("Escape")
        await expect(page.locator("#detail")).to_be_hidden()
        await expect(tile(page, "n1")).to_be_focused()
        await page.get_by_role("tab", name="Cluster").focus()
        await page.keyboard.press("ArrowRight")
        await expect(page.get_by_role("tab", name="Waiting")).to_have_attribute("aria-selected", "true")
        await expect(page.locator("main")).to_contain_text("No pod waits for GPUs.")
        await page.keyboard.press("ArrowLeft")
        await page.keyboard.press("ArrowLeft")
        await expect(page.get_by_role("tab", name="Health")).to_be_focused()
        await expect(page.locator("main")).to_contain_text("no GPU is out of service; 1 node takes no new pods")


@pytest.mark.parametrize(
    ("path", "said", "nodes"),
    [
        (r"/pods$", "you may not list pods in all namespaces", 3),
        (r"/resourceclaims$", "you may not list resourceclaims.resource.k8s.io", 3),
        (r"/nodes$", "you may not list nodes in all namespaces", 3),
        (r"/resourceslices$", "you may not list resourceslices.resource.k8s.io", 0),
        (r"/configmaps$", "you may not read configmaps in namespace gpu-topology", 3),
    ],
)
async def test_what_may_not_be_read_is_said(
    cluster: GpuCluster, opens: Opens, path: str, said: str, nodes: int
) -> None:
    async with served(cluster.store, read=False) as made:
        made.api.fail(times=math.inf, path=path, status=403, reason="Forbidden", message="by a test")
        page = await opens(made.url)
        await expect(page.locator("#unread")).to_contain_text(said)
        if nodes:
            await expect(page.locator(".tile")).to_have_count(nodes)
        else:
            await expect(page.locator("main")).to_contain_text("No node with GPUs of this driver is known.")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_text_is_legible(cluster: GpuCluster, opens: Opens, scheme: Any) -> None:
    cluster.pod("waits", 8, wishes={"required": "nvlink"})
    async with served(cluster.store) as made:
        made.api.fail(times=math.inf, path=r"/events$", status=403, reason="Forbidden", message="by a test")
        page = await opens(made.url, color_scheme=scheme)
        await expect(tile(page, "n1")).to_be_visible()
        assert await page.evaluate(CONTRASTS) == []
        await page.goto(f"{made.url}#tab=waiting&pod=default/waits")
        await expect(page.locator("#detail-body")).to_contain_text("Queue")
        assert await page.evaluate(CONTRASTS) == []
        await page.goto(f"{made.url}#tab=free&node=n1")
        await expect(page.locator("#detail-title")).to_contain_text("n1: 8 x")
        assert await page.evaluate(CONTRASTS) == []


# Every text whose contrast with what is behind it is less than 4.5, as WCAG 2.2 counts it in 1.4.3.
CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const part = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const clear = (colour) => colour === "transparent" || /, 0\\)$/.test(colour);
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const own = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || own.closest("svg, noscript, script, .unseen, .skip, [hidden]")) continue;
    let behind = own;
    while (behind && clear(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
    const ink = luminance(rgb(getComputedStyle(own).color));
    const back = luminance(rgb(getComputedStyle(behind).backgroundColor));
    const contrast = (Math.max(ink, back) + 0.05) / (Math.min(ink, back) + 0.05);
    if (contrast < 4.5) found.push(`${walker.currentNode.data.trim()}: ${contrast.toFixed(2)}`);
  }
  return found;
}"""


async def test_the_reader_chooses_light_or_dark_and_it_stays(cluster: GpuCluster, opens: Opens) -> None:
    async with served(cluster.store) as made:
        page = await opens(made.url, color_scheme="dark", reduced_motion="reduce")
        back = "getComputedStyle(document.body).backgroundColor"
        dark = await page.evaluate(back)
        await page.locator("#theme").click()
        await expect(page.locator("#theme")).to_have_text("Theme: light")
        light = await page.evaluate(back)
        assert _bright(dark) < 60 < 200 < _bright(light)
        await page.reload()
        assert await page.evaluate(back) == light
        await page.locator("#theme").click()
        assert await page.evaluate(back) == dark
        await expect(tile(page, "n2")).to_be_visible()
        cluster.rival("new", "n2", [0])
        await expect(tile(page, "n2")).to_have_class(re.compile("new"))
        assert await tile(page, "n2").evaluate("(tile) => getComputedStyle(tile).animationName") == "none"


def _bright(colour: str) -> float:
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3


async def test_a_page_whose_server_was_started_again_begins_again(cluster: GpuCluster, opens: Opens) -> None:
    with kept_port() as port:
        async with served(cluster.store) as first:
            async with serving(first.api, port=port) as made:
                page = await opens(made.url)
                await expect(tile(page, "n2").locator(".line span")).to_have_text("8 free")
            await expect(page.locator("#live")).to_have_class("live off")
            cluster.rival("meanwhile", "n2", [0, 1])
            async with serving(first.api, port=port):
                await expect(tile(page, "n2").locator(".line span")).to_have_text("6 free")
                await expect(page.locator("#live")).to_have_class("live on")


async def test_a_key_in_the_address_lets_its_reader_in(cluster: GpuCluster, opens: Opens) -> None:
    async with served(cluster.store, key=True) as made:
        page = await opens(made.url)
        assert "its key lets you read this page" in await page.content()
        await page.goto(f"{made.url}?key={made.page.guard.key}")
        await expect(tile(page, "n2")).to_be_visible()
        assert made.page.guard.key not in page.url


LOOKS = """(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


async def test_a_hidden_tab_holds_no_connection(
    cluster: GpuCluster, opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server, "BEAT_S", 0.05)  # a connection that was closed is noticed when something is said
    async with served(cluster.store) as made:
        page = await opens(made.url)
        await expect(page.locator("#live")).to_have_class("live on")
        while not made.page.streams:
            await asyncio.sleep(0.01)
        await page.evaluate(LOOKS, True)
        cluster.rival("meanwhile", "n2", [0])
        while made.page.streams:
            await asyncio.sleep(0.01)
        await page.evaluate(LOOKS, False)
        await expect(tile(page, "n2").locator(".line span")).to_have_text("7 free")
        cluster.rival("later", "n2", [1])
        await expect(tile(page, "n2").locator(".line span")).to_have_text("6 free")


async def test_many_nodes_that_change_together_are_drawn_once(opens: Opens) -> None:
    names = [f"node-{number:03d}" for number in range(200)]
    head = {"product": "H100", "who": [], "more": 0, "tenants": [], "set": 0, "zone": "", "closed": "", "unhealthy": 0}
    told = {
        "nodes": 200,
        "closed": 0,
        "gone": 0,
        "unhealthy": 0,
        "products": [],
        "waiting": 0,
        "oldest": None,
        "idle": 0,
    }
    now = 1_800_000_000
    samples = [[now, 800, 0, 0], [now + 300, 600, 200, 1], [now + 5000, 800, 0, 7], [now + 5300, 700, 100, 7]]
    history = encoder.encode({"step": 300, "samples": samples})
    common = {"summary": encoder.encode(told | {"server": "x"}), "unread": b"[]", "history": history}
    shown = Shown(Guard((), with_key=False))

    def publish(gpus: str, count: int) -> None:
        shown.feed.publish({name: encoder.encode(head | {"gpus": gpus}) for name in names[:count]}, common)

    async with shown.serve(host="127.0.0.1", port=0) as port:
        publish("ffff", 1)
        page = await opens(f"http://127.0.0.1:{port}/")
        await expect(page.locator(".tile")).to_have_count(1)
        await page.evaluate(
            "window.drawn = 0; new MutationObserver((seen) => (drawn += seen.length)).observe("
            "document.getElementById('main'), { childList: true })"
        )
        publish("ffff", 200)  # as one event
        await expect(page.locator(".tile")).to_have_count(200)
        assert await page.evaluate("drawn") == 1
        publish("afff", 200)
        await expect(page.locator(".cell.a")).to_have_count(200)
        assert await page.evaluate("drawn") == 2
        await expect(page.locator(".history .num")).to_have_text(["600 to 800", "0 to 200", "0 to 7"])
        drawn = await page.locator(".history .line-waiting path").get_attribute("d")
        assert drawn is not None
        assert drawn.count("M") == 2, "the line is broken where the server did not run"
        await expect(page.locator(".history p")).to_contain_text("last 1 h")


async def test_a_thousand_nodes(opens: Opens) -> None:
    cluster = fleet(1000)
    async with served(cluster.store) as made:
        page = await opens(made.url)
        await expect(page.locator(".tile")).to_have_count(1000)
        await expect(stat(page, "free")).to_have_text("4,004 of 8,000 GPUs free")
        await page.locator("#filter").fill("zone-3 free:8")
        await expect(page.locator(".tile")).to_have_count(28)
        await page.locator("#filter").fill("team-7/")
        await expect(page.locator(".tile")).to_have_count(44)
        await page.locator("#filter").fill("")
        cluster.rival("new", "node-00999", [7])
        await expect(stat(page, "free")).to_have_text("4,003 of 8,000 GPUs free")


FITS = """() => {
  const wide = (box) => box.scrollWidth > box.clientWidth + 1 || box.getBoundingClientRect().right > innerWidth + 1;
  const places = [document.documentElement, ...document.querySelectorAll("#detail, .wide")];
  const clipped = places.filter((box) => box.offsetParent !== null && wide(box));
  return clipped.map((box) => `${box.id || box.innerText}: ${box.scrollWidth}`);
}"""


@pytest.mark.parametrize("width", [1440, 390])
async def test_no_part_of_an_opened_node_is_clipped(cluster: GpuCluster, opens: Opens, width: int) -> None:
    taint(cluster, "n1", 5)
    cluster.node("rack", "gb200-nvl72-rack")
    cluster.node("sixteen", "dgx2-v100")
    cluster.rival("a" * 120, "rack", range(5))
    async with served(cluster.store) as made:
        page = await opens(made.url, viewport={"width": width, "height": 900})
        await page.evaluate("location.hash = 'node=n2'")
        await expect(page.locator("#detail-body")).to_contain_text("Connection traversing a bonded set of # NVLinks")
        assert await page.evaluate(FITS) == []
        await page.get_by_text("NICs (12)").click()
        await expect(page.locator("#detail-body svg[role=img]:visible")).to_have_count(2)
        await expect(page.locator("#detail-body details[open]")).to_contain_text("at most a single PCIe bridge")
        assert await page.evaluate(FITS) == []
        for node, title in (("rack", "72 x NVIDIA GB200, 0 free"), ("sixteen", "16 x Tesla V100-SXM3-32GB, 16 free")):
            await page.evaluate(f"location.hash = 'node={node}'")
            await expect(page.locator("#detail-title")).to_have_text(f"{node}: {title}")
            await expect(page.locator("#detail-body svg[role=img]:visible")).to_have_count(1)
            assert await page.evaluate(FITS) == []
        await page.evaluate("location.hash = 'tab=health&node=rack'")
        rows = page.locator("#detail-body table").nth(1).locator("tbody tr")
        await expect(rows).to_have_count(2)
        await expect(rows.last).to_have_text("5-71never placed: the machine has 72 GPUs, and at most 16 are supported")
        for tab, text in (("health", "tainted gpu.topology/xid=79:NoSchedule"), ("free", "Sets of whole GPUs")):
            await page.evaluate(f"location.hash = 'tab={tab}'")
            await expect(page.locator("main")).to_contain_text(text)
            assert await page.evaluate(FITS) == []


async def test_the_header_says_whether_something_is_broken(cluster: GpuCluster, opens: Opens) -> None:
    cluster.node("rack", "gb200-nvl72-rack")  # of which none is free: nothing is placed there
    taint(cluster, "n1", 5, 7)
    cluster.pod("waits", 8, wishes={"required": "nvlink", "product": "*V100*"})
    async with served(cluster.store) as made:
        page = await opens(made.url)
        await expect(stat(page, "free")).to_have_text("9 of 96 GPUs free")
        await expect(stat(page, "unhealthy")).to_have_text("2")
        await expect(stat(page, "waiting")).to_have_text("1")
        await expect(stat(page, "oldest")).to_have_text(re.compile(r"\d+ d"))
        await expect(stat(page, "agents")).to_have_text("4 of 4")
        await expect(page.locator(".stat.bad")).to_have_count(1)
        await expect(tile(page, "rack").locator(".line span")).to_have_text("never placed")
        await page.locator(".stat-unhealthy").click()
        await expect(page.get_by_role("tab", name="Health")).to_have_attribute("aria-selected", "true")
        rows = page.locator("main table", has_text="Nodes that take no new pods").locator("tbody tr")
        await expect(rows).to_contain_text(["n10cordoned80", "racknever placed: the machine has 72 GPUs"])


async def test_what_is_chosen_stands_in_the_address(cluster: GpuCluster, opens: Opens) -> None:
    cluster.rival("other", "n2", [0])
    async with served(cluster.store) as made:
        page = await opens(made.url)
        groups, names = page.locator(".zone h3"), page.locator(".tile .line b")
        await page.keyboard.press("g")
        await expect(groups).to_have_text(["NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-32GB"])
        await page.locator("#group").select_option("pod")
        await expect(groups).to_have_text(
            ["default/old, a claim without pod", "default/other, a claim without pod", "No pod uses GPUs there"]
        )
        await page.locator("#group").select_option("tenant")
        await expect(groups).to_have_text(["Namespace default", "No tenant has GPUs there"])
        await page.locator("#sort").select_option("allocated")
        await page.locator("#filter").fill("default")
        await expect(names).to_have_text(["n1", "n2"])
        await page.locator("#sort").select_option("free")
        await expect(names).to_have_text(["n2", "n1"])
        cluster.rival("more", "n2", [1, 2, 3, 4, 5, 6])
        await expect(names).to_have_text(["n1", "n2"])
        await tile(page, "n2").click()
        await expect(page.locator("#detail-title")).to_contain_text("n2: 8 x")
        assert "group=tenant&sort=free&filter=default&node=n2" in page.url
        await page.reload()
        await expect(names).to_have_text(["n1", "n2"])
        await expect(page.locator("#filter")).to_have_value("default")
        await expect(page.locator("#detail-title")).to_contain_text("n2: 8 x")


async def test_commands_are_copied_and_keys_are_listed(cluster: GpuCluster, opens: Opens) -> None:
    cluster.pod("waits", 8, wishes={"required": "nvlink"})
    async with served(cluster.store) as made:
        page = await opens(made.url, permissions=["clipboard-read", "clipboard-write"])
        await page.evaluate("location.hash = 'tab=waiting&pod=default/waits'")
        commands = page.locator("#commands li")
        await expect(commands.locator("code")).to_have_text(
            ["kubectl describe pod waits -n default", "gputopo explain waits -n default"]
        )
        await commands.last.get_by_role("button").click()
        await expect(commands.last).to_contain_text("Copied")
        assert await page.evaluate("navigator.clipboard.readText()") == "gputopo explain waits -n default"
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()
        await expect(page.locator("#detail")).to_be_visible()
        await page.keyboard.press("1")
        await expect(tile(page, "n1")).to_be_visible()
