"""``gputopo serve`` without a browser: who may ask, what is sent when, and that what changes keep is what is so."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from dradriver.api.base.allocating_driver import NVIDIA
from dradriver.api.base.allocating_driver import bound as ledger
from dradriver.api.policies.gpu_modes import Mode
from dradriver.cli import serve
from dradriver.cli.main import main
from dradriver.cli.page import followed_objects, login_session, page_server
from dradriver.cli.page.feed import Feed
from dradriver.cli.page.guard import Guard, name_of
from dradriver.kube.resources import CONFIG_MAPS, MUTATING_WEBHOOKS, NODES, PODS, RESOURCE_CLAIMS
from dradriver.view.page import FILES
from tests.fakes.addoncluster import AddOnCluster
from tests.fakes.commands import CommandLine, run_all
from tests.fakes.gpucluster import GpuCluster
from tests.fakes.installed import policies_map, webhook_configuration
from tests.fakes.serving import Served, served, serving
from tests.unit.cli.test_queue import reserve


@pytest.fixture
def cluster() -> GpuCluster:
    made = GpuCluster()
    made.node("n1")
    made.node("n2", "dgx-h100")
    made.rival("old", "n1", [0, 1])
    return made


def pieces(made: Served) -> dict[str, Any]:
    """Everything that the page is told now."""
    found: dict[str, Any] = json.loads(gzip.decompress(made.page.feed.whole()))["set"]
    return found


async def ask(url: str, path: str = "", *, method: str = "GET", **headers: str) -> tuple[int, str, Any]:
    async with (
        aiohttp.ClientSession() as client,
        client.request(method, url + path, headers=headers, allow_redirects=False) as answer,
    ):
        return answer.status, await answer.text(), answer.headers


# What a reader has not seen.


def test_a_reader_is_told_what_changed_since_and_nothing_else() -> None:
    feed = Feed()
    feed.publish({"a": b"1", "b": b"2"}, {"summary": b"{}"})
    seen = feed.version
    feed.publish({"b": b"2"}, {"summary": b"{}"})
    assert feed.version == seen  # the same again is no news
    feed.publish({"a": b"3"}, {"summary": b"{}", "pod/x": b"4"})
    feed.publish({"a": b"5", "b": None}, {"summary": b"{}"})
    told = json.loads(feed.since(seen))
    assert (told["mark"], told["set"], sorted(told["gone"])) == (feed.mark(), {"node/a": 5}, ["node/b", "pod/x"])
    assert json.loads(gzip.decompress(feed.whole()))["set"] == {"node/a": 5, "summary": {}}
    feed.publish({"b": b"6"}, {"summary": b"{}"})
    assert json.loads(feed.since(seen))["gone"] == ["pod/x"]  # who came again is not gone


def test_a_reader_of_another_feed_or_of_a_forgotten_version_begins_again() -> None:
    feed, other = Feed(), Feed()
    feed.publish({"a": b"1"}, {})
    mark = feed.mark()
    assert feed.read(mark) == 1
    other.publish({"a": b"1"}, {})
    for strange in (other.mark(), "", "x", f"{mark}9", mark.replace(".1", ".-1"), mark.replace(".1", "." + "9" * 5000)):
        assert feed.read(strange) is None
    for number in range(5000):
        feed.publish({f"n{number}": b"1"}, {})
        feed.publish({f"n{number}": None}, {})
    assert feed.read(mark) is None
    assert feed.read(feed.mark()) == feed.version


async def test_that_no_slice_is_published_is_said_until_the_first_is() -> None:
    """As after a reinstall: the node agents come later than the page."""
    cluster = GpuCluster()
    cluster.node("n1", None)
    async with served(cluster.store) as made:
        assert "no ResourceSlice of driver gpu.topology" in pieces(made)["unread"][0]
        assert "shown/free" not in pieces(made)
        cluster.node("n1")
        while "node/n1" not in pieces(made):
            await made.page.feed.news(made.page.feed.version)
        assert pieces(made)["unread"] == []
        assert pieces(made)["shown/free"].startswith("<p>8 of 8 GPUs are free")


# Who may ask.


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8321", 200), ("127.0.0.1", 200), ("[::1]:8321", 200), ("LOCALHOST", 200),
        ("evil.example:8321", 421), ("127.0.0.1.evil.example", 421), ("localhost.evil.example", 421), ("", 421),
    ],
)  # fmt: skip
async def test_only_known_names_are_answered(cluster: GpuCluster, host: str, status: int) -> None:
    async with served(cluster.store, read=False) as made:
        for path in ("", "api/state", "api/events", "page.js"):
            got, said, _ = await ask(made.url, path, Host=host)
            assert got == status
            if status == 421:
                assert "serve it with --host" in said
            if status == 200 and path == "":
                break  # events of an answered name would not end


def test_a_hosts_name_is_what_stands_before_its_port() -> None:
    assert [name_of(one) for one in ("A:1", "[::1]:2", "[::1]", "b", "")] == ["a", "::1", "::1", "b", ""]


async def test_another_sites_page_reads_nothing_and_nothing_can_be_changed(cluster: GpuCluster) -> None:
    async with served(cluster.store) as made:
        for path in ("api/state", "api/node?name=n1", "page.js"):
            for site in ("cross-site", "same-site"):
                got, _, _ = await ask(made.url, path, **{"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"})
                assert got == 403
        assert (await ask(made.url, "", **{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}))[0] == 200
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
            got, _, headers = await ask(made.url, "api/state", method=method)
            assert (got, headers["Allow"]) == (405, "GET")


async def test_every_answer_forbids_what_the_page_does_not_need(cluster: GpuCluster) -> None:
    async with served(cluster.store) as made:
        for path in ("", *sorted(FILES), "api/state", "api/node?name=n1", "api/node?name=no", "api/pod", "nothing"):
            got, text, headers = await ask(made.url, path)
            assert got == (404 if path in ("api/node?name=no", "api/pod", "nothing") else 200), path
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self';" in policy
            assert "unsafe" not in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert "Access-Control-Allow-Origin" not in headers
            assert headers["Server"] == "gputopo"
            if path.endswith((".html", ".css", ".js")):
                assert not re.search(r"https?://|style=|onclick=", text), "nothing from elsewhere, nothing inline"


async def test_a_file_that_a_browser_has_is_not_sent_again(cluster: GpuCluster) -> None:
    async with served(cluster.store, read=False) as made:
        _, text, headers = await ask(made.url, "page.js")
        assert text
        assert (await ask(made.url, "page.js", **{"If-None-Match": headers["ETag"]}))[:2] == (304, "")


async def test_a_key_is_asked_for_until_it_was_given_once(cluster: GpuCluster) -> None:
    async with served(cluster.store, key=True) as made:
        key, cookie = made.page.guard.key, made.page.guard.cookie
        for wrong in ("", "?key=", f"?key={key[:-1]}", "?key=\u00fc"):
            assert (await ask(made.url, wrong))[0] == 401
        assert (await ask(made.url, "api/state", Cookie=f"{cookie}=wrong"))[0] == 401
        status, _, headers = await ask(made.url, f"?key={key}")
        assert (status, headers["Location"]) == (303, "./")
        assert "HttpOnly" in headers["Set-Cookie"]
        assert "SameSite=Lax" in headers["Set-Cookie"]
        assert (await ask(made.url, "api/state", Cookie=f"{cookie}={key}"))[0] == 200


# What is sent.


async def events(response: aiohttp.ClientResponse) -> Any:
    while True:
        line = (await response.content.readline()).decode()
        if line.startswith("data: "):
            yield json.loads(line[6:])


@pytest.mark.slow
async def test_events_have_what_changed_and_a_reader_without_a_version_begins_again(cluster: GpuCluster) -> None:
    async with served(cluster.store) as made, aiohttp.ClientSession() as client:
        async with client.get(f"{made.url}api/events") as response:
            assert (await response.text()).endswith("event: anew\ndata: {}\n\n")
        async with client.get(f"{made.url}api/events?since={made.page.feed.mark()}") as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            cluster.rival("new", "n2", [0, 1, 2])
            told = await anext(events(response))
        assert told["set"]["node/n2"]["gpus"] == "aaafffff"
        assert "node/n1" not in told["set"]
        assert told["set"]["summary"]["products"][0] == ["NVIDIA H100 80GB HBM3", {"a": 3, "f": 5}]


@pytest.mark.slow
async def test_readers_are_bounded(cluster: GpuCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "MOST_STREAMS", 2)
    async with served(cluster.store) as made, aiohttp.ClientSession() as client:
        url = f"{made.url}api/events?since={made.page.feed.mark()}"
        async with client.get(url), client.get(url):
            assert (await ask(made.url, f"api/events?since={made.page.feed.mark()}"))[0] == 503
        monkeypatch.setattr(page_server, "BEAT_S", 0.01)
        cluster.rival("new", "n2", [0])  # from now on they are spoken to, and found to be gone
        while made.page.streams:
            await asyncio.sleep(0.01)
        async with client.get(url) as response:
            assert response.status == 200


async def test_a_node_and_a_pod_are_what_topo_and_explain_show(cluster: GpuCluster) -> None:
    cluster.pod("waits", 8, wishes={"required": "nvlink", "product": "*V100*"})
    await run_all(cluster)
    async with served(cluster.store) as made:
        node = json.loads((await ask(made.url, "api/node?name=n1"))[1])
        assert node["title"] == "n1: 8 x Tesla V100-SXM2-32GB, 6 free"
        assert "default/old, a claim without pod" in node["html"]
        before = len(made.api.requests)
        pod = json.loads((await ask(made.url, "api/pod?namespace=default&name=waits"))[1])
        assert pod["title"] == "Pod default/waits"
        assert "What would help" in pod["html"]
        lists = [one.path for one in made.api.requests[before:] if one.path.endswith(("nodes", "slices", "claims"))]
        assert lists == []  # they are followed, and not read again
        for strange in ("namespace=default&name=none", "namespace=&name=waits", "namespace=a%2Fb&name=..", "name=x"):
            assert (await ask(made.url, f"api/pod?{strange}"))[0] == 404


# What is kept by changes is what is so.


async def as_read_again(made: Served) -> dict[str, Any]:
    """What the page is told, once it is what a page is told that reads everything now."""

    def shown(page: Served) -> dict[str, Any]:
        return {key: piece for key, piece in pieces(page).items() if key != "history"}

    async with serving(made.api) as fresh:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(20):
                while shown(made) != shown(fresh):
                    feeds = (made.page.feed, fresh.page.feed)
                    news = [asyncio.create_task(feed.news(feed.version)) for feed in feeds]
                    await asyncio.wait(news, return_when=asyncio.FIRST_COMPLETED, timeout=1)
                    for task in news:
                        task.cancel()
        kept = shown(made)
        assert kept == shown(fresh)
        return kept


@pytest.mark.slow
async def test_what_is_kept_by_changes_is_what_is_read_again(cluster: GpuCluster) -> None:
    cluster.put(CONFIG_MAPS, policies_map("{}\n"))
    async with served(cluster.store) as made:
        for number in range(4):
            cluster.pod(f"small-{number}", 2)
        await run_all(cluster)
        cluster.node("n3", "dgx-h100", labels={"topology.kubernetes.io/zone": "z"})
        cluster.rival("more", "n3", range(5))
        cluster.pod("large", 8, wishes={"required": "nvlink", "product": "*V100*"})
        await as_read_again(made)
        cluster.remove(RESOURCE_CLAIMS, "old", "default")
        cluster.rival("more", "n3", [7])
        cluster.node("n1", None, unschedulable=True)
        cluster.publish("n2", cluster.machines["n2"])
        cluster.remove(PODS, "small-1", "default")
        await run_all(cluster)
        policies = "tenants:\n  red: {namespaces: [default], weight: 2, cap: [{gpus: 12}]}\n"
        cluster.put(CONFIG_MAPS, policies_map(policies))
        assert "red" in (await as_read_again(made))["shown/tenants"]


@pytest.mark.slow
async def test_next_to_nvidias_driver_a_claim_that_comes_later_takes_gpus_from_what_is_free() -> None:
    with ledger(NVIDIA):
        cluster = AddOnCluster()
        cluster.node("a")
    async with served(cluster.store) as made:
        cluster.foreign("theirs", "a", "gpu-0", "gpu-1")
        assert (await as_read_again(made))["node/a"]["gpus"].count("f") == 6


async def test_a_user_of_one_namespace_sees_what_is_theirs_and_is_told_so(cluster: GpuCluster) -> None:
    cluster.pod("waits", 8, wishes={"required": "nvlink"})
    cluster.pod("theirs", 8, namespace="other")
    async with served(cluster.store, read=False) as made:
        made.api.fail(times=math.inf, path=r"v1/(pods|resourceclaims)$", status=403, reason="Forbidden")
        while made.page.details is None or "pod/default/waits" not in pieces(made):
            await made.page.feed.news(made.page.feed.version)
        told = pieces(made)
        assert "pod/other/theirs" not in told
        assert told["unread"] == [
            "only resourceclaims of namespace default are shown, because you may not list those of all "
            "namespaces. GPUs that look free can be allocated to claims that you cannot see",
            "only pods of namespace default are shown, because you may not list those of all namespaces",
        ]


@pytest.mark.slow
async def test_rights_that_come_later_are_used(cluster: GpuCluster) -> None:
    async with served(cluster.store, read=False) as made:
        fault = made.api.fail(times=math.inf, path=r"/nodes$", status=403, reason="Forbidden")
        while made.page.details is None:
            await made.page.feed.news(made.page.feed.version)
        assert "you may not list nodes" in pieces(made)["unread"][0]
        fault.stop()
        cluster.node("n1", None, unschedulable=True)
        while pieces(made)["unread"] or pieces(made)["node/n1"]["closed"] != "cordoned":
            await made.page.feed.news(made.page.feed.version)


async def _until(made: Served, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    while not holds(told := pieces(made)):
        await made.page.feed.news(made.page.feed.version)
    return told


ALL_NAMESPACES = r"v1/(pods|resourceclaims)$"


@pytest.mark.slow
async def test_what_may_not_be_read_any_more_is_shown_no_more(cluster: GpuCluster) -> None:
    cluster.pod("waits", 8, wishes={"required": "nvlink"})
    cluster.pod("theirs", 8, namespace="other")
    async with served(cluster.store) as made:
        await _until(made, lambda told: "pod/other/theirs" in told)
        made.api.fail(times=math.inf, path=ALL_NAMESPACES, status=403, reason="Forbidden")
        made.api.disconnect()
        told = await _until(made, lambda told: "pod/other/theirs" not in told and len(told["unread"]) == 2)
        assert "pod/default/waits" in told
        assert (
            told["unread"][1]
            == "only pods of namespace default are shown, because you may not list those of all namespaces"
        )


@pytest.mark.slow
async def test_all_namespaces_are_tried_again_where_one_is_shown(
    cluster: GpuCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_session, "ANEW_S", 0.1)
    monkeypatch.setattr(login_session, "MINUTE_S", 0.1)
    cluster.pod("theirs", 8, namespace="other")
    async with served(cluster.store, read=False) as made:
        fault = made.api.fail(times=math.inf, path=ALL_NAMESPACES, status=403, reason="Forbidden")
        await _until(made, lambda told: len(told.get("unread", ())) == 2)
        fault.stop()
        await _until(made, lambda told: "pod/other/theirs" in told and told["unread"] == [])


@pytest.mark.slow
async def test_what_may_be_listed_and_not_watched_is_shown_with_the_right_that_lacks(
    cluster: GpuCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_objects, "REST_S", 0.05)
    said = 'configmaps is forbidden: User "u" cannot watch resource "configmaps"'
    policies = "tenants:\n  red: {namespaces: [default], weight: 2}\n"
    async with served(cluster.store, read=False) as made:
        made.api.fail(times=math.inf, path=r"/configmaps$", watch=True, status=403, reason="Forbidden", message=said)
        told = await _until(made, lambda told: made.page.details is not None and told["unread"] != [])
        assert len(told["unread"]) == 1
        assert "Ask for the verb watch on them" in told["unread"][0]
        cluster.put(CONFIG_MAPS, policies_map(policies))
        await _until(made, lambda told: "red" in told["shown/tenants"])


async def test_the_policies_are_those_of_the_namespace_where_the_drivers_webhook_is(cluster: GpuCluster) -> None:
    policies = "tenants:\n  red: {namespaces: [default], weight: 2}\n"
    cluster.put(CONFIG_MAPS, policies_map(policies, namespace="kube-gpu"))
    cluster.put(MUTATING_WEBHOOKS, webhook_configuration("kube-gpu"))
    async with served(cluster.store) as made:
        await _until(made, lambda told: "red" in told.get("shown/tenants", ""))


async def test_free_is_what_free_counts_and_each_other_gpu_says_why_it_is_not(
    cluster: GpuCluster, tmp_path: Path
) -> None:
    cluster.node("closed", unschedulable=True)
    cluster.node("goes", annotations={"gpu.topology/maintenance": "2030-01-01T00:00:00Z"})
    cluster.node("rack", "gb200-nvl72-rack")  # more GPUs than a machine of which some are placed may have
    cluster.node("sliced", "dgx-a100", mode=Mode(mig="placements"))
    cluster.rival("held", "rack", [0])
    cluster.pod("waits", 8)
    async with served(cluster.store) as made:
        told = await _until(made, lambda told: "node/rack" in told)
        free = await CommandLine(made.api, tmp_path).run("free", "-o", "json")
        assert _free(told) == json.loads(free.stdout)["free"] == 14
        reserve(cluster, "waits", 2, 3)  # of n1
        told = await _until(made, lambda told: told["node/n1"]["gpus"] == "aarrffff")
        free = await CommandLine(made.api, tmp_path).run("free", "-o", "json")
        assert _free(told) == json.loads(free.stdout)["free"] == 12
        shown = {name: told[f"node/{name}"] for name in ("closed", "goes", "rack", "sliced")}
        assert {name: set(piece["gpus"]) for name, piece in shown.items()} == {
            "closed": {"c"}, "goes": {"c"}, "rack": {"a", "n"}, "sliced": {"b"},
        }  # fmt: skip
        assert {name: piece["closed"] for name, piece in shown.items()} == {
            "closed": "cordoned",
            "goes": "goes for maintenance",
            "rack": "never placed: the machine has 72 GPUs, and at most 16 are supported",
            "sliced": "",
        }


def _free(told: dict[str, Any]) -> int:
    return sum(counts.get("f", 0) for _, counts in told["summary"]["products"])


async def test_the_history_outlives_a_login(cluster: GpuCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_session, "LOGIN_S", 0.1)
    async with served(cluster.store) as made:
        (sample,) = pieces(made)["history"]["samples"]
        assert sample[1:] == [14, 2, 0]
        made.api.token = "another"
        made.api.disconnect()
        await _until(made, lambda told: any("refuses the credentials" in one for one in told["unread"]))
        made.api.token = None
        cluster.node("n3")
        told = await _until(made, lambda told: "node/n3" in told)
        assert told["history"]["samples"] == [sample]  # it is not due again for minutes


async def test_between_two_logins_nothing_is_said_to_be_gone(cluster: GpuCluster) -> None:
    async with served(cluster.store) as made:
        made.page.details = None
        for path in ("api/node?name=n1", "api/pod?namespace=default&name=p"):
            assert (await ask(made.url, path))[0] == 503


async def test_credentials_that_end_are_made_again(cluster: GpuCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_session, "LOGIN_S", 0.1)
    async with served(cluster.store) as made:
        made.api.token = "another"
        made.api.disconnect()
        while not any("refuses the credentials" in one for one in pieces(made)["unread"]):
            await made.page.feed.news(made.page.feed.version)
        assert "node/n1" in pieces(made)  # what was known stays
        made.api.token = None
        cluster.node("n3")
        while "node/n3" not in pieces(made):
            await made.page.feed.news(made.page.feed.version)
        assert pieces(made)["unread"] == []


@pytest.mark.slow
async def test_one_odd_object_costs_no_other_anything(cluster: GpuCluster) -> None:
    async with served(cluster.store) as made:
        for number, spec in enumerate(({}, {"devices": {"requests": None}}, {"devices": 7})):
            odd = {
                "metadata": {"name": f"odd-{number}", "namespace": "default"},
                "spec": spec,
                "status": {"allocation": 3},
            }
            cluster.put(RESOURCE_CLAIMS, odd)
        cluster.put(NODES, {"metadata": {"name": "odd"}, "status": {"conditions": None}})
        cluster.rival("new", "n2", [0])
        while pieces(made)["node/n2"]["gpus"][0] != "a":
            await made.page.feed.news(made.page.feed.version)


def test_a_port_that_is_taken_is_said(tmp_path: Any) -> None:
    import socket

    config = tmp_path / "config"
    config.write_text(
        "current-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\nusers: [{name: u, user: {token: x}}]\n"
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(main, ["serve", "--port", port, "--kubeconfig", str(config)])
        health = CliRunner().invoke(main, ["serve", "--port=0", "--health-port", port, "--kubeconfig", str(config)])
    assert result.exit_code == health.exit_code == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in result.stderr
    assert f"cannot listen on --health-port {port}" in health.stderr


@pytest.mark.parametrize(
    ("address", "shown"),
    [("::", "[::1]"), ("::1", "[::1]"), ("0.0.0.0", "127.0.0.1"), ("localhost", "127.0.0.1"), ("fd00::2", "[fd00::2]")],
)
def test_the_address_that_is_printed_is_one_that_answers(address: str, shown: str) -> None:
    assert serve._host_for_browser(address) == shown


def test_no_two_pages_have_one_cookie() -> None:
    """A browser has the cookies of all ports of an address in one jar."""
    assert Guard((), with_key=True).cookie != Guard((), with_key=True).cookie
