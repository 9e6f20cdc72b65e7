"""The ConfigMap with the policies file: an invalid file of the webhook's own release is refused with all its errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer, TestClient

from dradriver import __version__
from dradriver.api.base import names
from tests.fakes.admission import CONTROLLER, Object, body
from webhook import review, server
from webhook.admission import POLICIES_PATH, Admission

Http = TestClient[web.BaseRequest, None]
VALID = "tenants: {a: {namespaces: [x]}}\n"
INVALID = "weights: {nvlnk: 1}\ntenants: {a: {namespaces: [x]}, b: {namespaces: [x]}}\n"
ERRORS = (
    "weights.nvlnk: This field is unknown. Known fields: nvlink, ",
    "tenants.b.namespaces[0]: the namespace x also belongs to tenant a. Remove it from one of the two places.",
)


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    client: Http
    async with TestClient(RawTestServer(server.Endpoint(Admission(controller_user=CONTROLLER)).handle)) as client:
        yield client


def config_map(text: str | None, *, version: str | None = __version__, **labels: str) -> Object:
    """Return the chart's ConfigMap with a policies file."""
    labels |= {} if version is None else {names.VERSION_LABEL: version}
    data = {} if text is None else {"policies.yaml": text}
    return {"kind": "ConfigMap", "metadata": {"name": "gpu-topology-policies", "labels": labels}, "data": data}


async def admitted(http: Http, new: object, old: object = None, **more: Any) -> dict[str, Any]:
    """Return the response to a review of a ConfigMap."""
    async with http.post(POLICIES_PATH, json=body(new, old=old, **({"kind": "ConfigMap"} | more))) as answer:
        assert answer.status == 200, await answer.text()
        return dict((await answer.json())["response"])


@pytest.mark.parametrize("old", [None, config_map(VALID)], ids=["create", "update"])
async def test_an_invalid_file_is_refused_with_all_its_errors(http: Http, old: Object | None) -> None:
    response = await admitted(http, config_map(INVALID), old)
    assert response["allowed"] is False
    says, *errors = response["status"]["message"].splitlines()
    assert says.startswith("The policies file has 2 errors, so it is not stored. Correct it and repeat the command.")
    assert len(errors) == 2
    for error, expected in zip(errors, ERRORS, strict=True):
        assert error.startswith(expected)


@pytest.mark.parametrize("old", [None, config_map(INVALID), config_map(None)])
@pytest.mark.parametrize("text", [VALID, "{}\n", ""])
async def test_a_valid_file_is_admitted_without_a_warning(http: Http, text: str, old: Object | None) -> None:
    assert set(await admitted(http, config_map(text), old)) == {"uid", "allowed"}


@pytest.mark.parametrize("version", ["0.0.9", "99.0.0", None])
async def test_a_file_of_another_release_is_admitted_with_a_warning(http: Http, version: str | None) -> None:
    """During an upgrade and a rollback the webhook gets the file of the other release."""
    response = await admitted(http, config_map(INVALID, version=version), config_map(VALID))
    assert response["allowed"] is True
    says, *errors = response["warnings"]
    assert says.startswith("The running version of the driver cannot use this policies file, and keeps its last valid")
    assert [error.partition(": ")[0] for error in errors] == ["weights.nvlnk", "tenants.b.namespaces[0]"]
    assert set(await admitted(http, config_map(VALID, version=version), config_map(INVALID))) == {"uid", "allowed"}


async def test_what_is_stored_already_can_get_labels_and_lose_finalizers(http: Http) -> None:
    """The file was stored while no webhook answered. The garbage collector updates what it deletes."""
    response = await admitted(http, config_map(INVALID, a="b"), config_map(INVALID))
    assert response["allowed"] is True
    assert len(response["warnings"]) == 3
    assert (await admitted(http, config_map(INVALID + "#"), config_map(INVALID)))["allowed"] is False


async def test_a_map_without_the_file_is_refused(http: Http) -> None:
    response = await admitted(http, config_map(None), config_map(VALID))
    assert response["status"]["message"].splitlines()[1:] == ["The ConfigMap has no key policies.yaml."]


async def test_an_error_of_the_whole_text_has_its_line(http: Http) -> None:
    response = await admitted(http, config_map("gpus:\n  - [\n"))
    assert response["status"]["message"].splitlines()[1].startswith("line 3: The text is not YAML: ")


@pytest.mark.slow
async def test_the_answer_is_bounded(http: Http) -> None:
    """Each of thousands of namespaces belongs to another tenant already."""
    tenants = "".join(f"  t{number:03}: {{namespaces: [x{', x' * 20}]}}\n" for number in range(700))
    response = await admitted(http, config_map("tenants:\n" + tenants))
    says, *errors, last = response["status"]["message"].splitlines()
    count = 700 * 21 - 1
    assert says.startswith(f"The policies file has {count} errors")
    assert last == f"{count - len(errors)} more are left out."
    assert len(json.dumps(response)) < review.MOST_MESSAGE + 2 * review.MOST_DETAILS
    response = await admitted(http, config_map("tenants:\n" + tenants, version=None))
    assert (len(response["warnings"]), response["warnings"][-1]) == (8, f"There are {count + 1 - 7} more warnings.")


async def test_no_text_of_a_file_breaks_a_line(http: Http) -> None:
    response = await admitted(http, config_map('gpus: [{mig: "a\\nb\\e[31m"}]\n'))
    assert len(response["status"]["message"].splitlines()) == 2
    assert "\x1b" not in response["status"]["message"]


@pytest.mark.parametrize(
    "more", [{"operation": "DELETE"}, {"subResource": "status"}, {"kind": "Secret"}], ids=lambda more: str(*more)
)
async def test_nothing_else_is_refused(http: Http, more: dict[str, str]) -> None:
    assert set(await admitted(http, config_map(INVALID), **more)) == {"uid", "allowed"}


@pytest.mark.parametrize("broken", [[], "x", {"metadata": {"labels": []}}, {"data": {"policies.yaml": 7}}])
async def test_what_is_no_config_map_is_refused(http: Http, broken: object) -> None:
    response = await admitted(http, broken)
    assert response["status"]["message"].startswith("The object is not a valid ConfigMap: ")
