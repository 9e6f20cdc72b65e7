"""The page on stability names each public interface, with a level that the page explains."""

from __future__ import annotations

import re

from dradriver.api.base import names
from tests.paths import REPO

TEXT = (REPO / "docs/reference/stability.md").read_text("utf-8")
INTERFACES, PROMISES = TEXT.split("## What the levels promise")
ROW = re.compile(r"(?m)^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$")


def rows(part: str) -> list[tuple[str, str, str]]:
    return [row for row in ROW.findall(part) if row[1] not in ("level", "an incompatible change is possible")]


def test_each_interface_has_a_level_that_is_explained() -> None:
    explained = [level for level, *_ in rows(PROMISES)]
    assert explained == ["stable", "beta", "alpha"]
    assert {level for _, level, _ in rows(INTERFACES)} <= set(explained)


def test_what_people_rely_on_is_listed() -> None:
    told = "\n".join(interface for interface, *_ in rows(INTERFACES))
    for interface in ("annotations", "policies file", "JSON", "attributes", "metrics", "values of the chart"):
        assert interface in told
    assert names.ALLOCATED in told


def test_the_version_of_claims_configuration_says_its_level() -> None:
    (level,) = (level for interface, level, _ in rows(INTERFACES) if names.CONFIG_API_VERSION in interface)
    assert level in names.CONFIG_API_VERSION
