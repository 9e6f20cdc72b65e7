"""Every name that stands in a Kubernetes object is documented, in one table, with values that the code takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from docs import annotations as written
from dradriver.allocator.set_policies import POLICIES
from dradriver.api.base import names
from dradriver.api.pod.annotations import Annotations
from dradriver.api.policies.policy_sections import WORKLOADS
from dradriver.api.vocabulary import annotation_words as words_of_pods
from dradriver.api.vocabulary import values
from tests.contract.built import BUILDERS
from tests.paths import REPO

DOMAIN = "resource.kubernetes.io/"
CHOICES = {word.key: word.choices for word in words_of_pods.EVERY if word.choices} | {
    names.POLICY: POLICIES,
    names.WORKLOAD: WORKLOADS,
    names.REQUIRED: values.CONSTRAINTS,
    names.MULTI_NODE_POLICY: values.STRATEGIES,
}
# Rows of these say in words what may be written.
IN_PROSE = {names.PREFERRED, names.CLAIM}
# Of all others one value is an example of a form, not all that there are.
FORMS = {*words_of_pods.KEYS} - {*CHOICES} - IN_PROSE


class Row(NamedTuple):
    """A row of a table: the keys of its first cell, and what stands as code in the second."""

    keys: list[str]
    values: list[str]


def rows(document: str, heading: str) -> Iterator[Row]:
    """Yield the rows of all tables below a heading; a row without a first cell goes on with the one above it."""
    text = (REPO / document).read_text("utf-8")
    body = re.split(rf"(?m)^## {re.escape(heading)}$", text)[1].partition("\n## ")[0]
    above: list[str] = []
    for line in body.splitlines():
        if not line.startswith("|") or set(line) <= set("|- "):
            continue
        first, second, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        keys = re.findall(r"`([^`]+)`", first)
        found = re.findall(r"`([^`]+)`", re.sub(r"\[[^]]*\]\([^)]*\)", "", second))
        if keys or not first:
            above = keys or above
            yield Row(above, found)


def words(heading: str, document: str = "docs/reference/annotations.md") -> list[Row]:
    return [
        Row([key if "/" in key else names.PREFIX + key for key in row.keys], row.values)
        for row in rows(document, heading)
    ]


SAID = [*words("Annotations"), *words("What is written back")]


def test_the_page_is_up_to_date() -> None:
    assert written.TARGET.read_text("utf-8") == written.page(), "run make reference"


def test_what_the_page_says_of_a_word_that_is_not_said_any_more_is_gone() -> None:
    assert sorted(written.MEANINGS) == sorted({*words_of_pods.KEYS} - {names.POLICY})
    assert sorted(written.RESULTS) == sorted(names.RESULTS)


def test_a_table_that_is_not_the_codes_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stale = tmp_path / "words.md"
    stale.write_text(written.TARGET.read_text("utf-8").replace("a whole number from 1 to 32", "many"), "utf-8")
    monkeypatch.setattr(written, "TARGET", stale)
    assert written.page() != stale.read_text("utf-8")


def test_every_annotation_of_a_pod_stands_in_one_row() -> None:
    told = [key for row in SAID for key in row.keys]
    once = list(dict.fromkeys(told))
    assert sorted(once) == sorted({*words_of_pods.KEYS, *names.RESULTS})
    assert [key for key in once if told.count(key) > 1] == [names.POLICY], "which has three rows"


@pytest.mark.parametrize("key", sorted(CHOICES))
def test_values_to_choose_from_are_all_told(key: str) -> None:
    told = {value for row in SAID if row.keys == [key] for value in row.values}
    assert told == set(CHOICES[key])


@pytest.mark.parametrize("key", sorted({*FORMS, *CHOICES}))
def test_values_that_are_told_are_taken(key: str) -> None:
    found = [row for row in SAID if key in row.keys and row.values]
    assert found
    for row in found:
        together = len(row.keys) > 1
        assert not together or len(row.values) == len(row.keys), f"a value for each of {row.keys}"
        for value in [row.values[row.keys.index(key)]] if together else row.values:
            Annotations({key: value}).check()


def test_names_on_other_objects_are_told_in_architecture() -> None:
    text = (REPO / "ARCHITECTURE.md").read_text("utf-8").partition("## Names that must not change")[2]
    told = re.findall(r"`(gpu\.topology/[^`]+)`", text.partition("\n## ")[0])
    own = {value for value in vars(names).values() if isinstance(value, str) and value.startswith(names.PREFIX)}
    others = own - {*words_of_pods.KEYS, *names.RESULTS, *names.FORMER_RESULTS, *names.NOTES, names.PREFIX}
    others.remove(names.CONFIG_API_VERSION)
    assert sorted(told) == sorted({*others, names.GATE, names.PREFIX + "translate"})
    page = (REPO / "docs" / "reference" / "annotations.md").read_text("utf-8")
    assert all(f"`{key}`" in page or f"`{key.removeprefix(names.PREFIX)}`" in page for key in names.NOTES)


def test_the_words_that_the_readme_shows_are_words() -> None:
    _, *shown = (row for row in rows("README.md", "The annotations that you need first") if row.keys)
    assert len(shown) == 6
    for row in shown:
        for key, _, value in (text.partition(": ") for text in row.keys):
            Annotations({names.PREFIX + key: value.strip('"')}).check()


def test_every_attribute_and_capacity_of_a_device_is_told() -> None:
    told = [key.removeprefix(DOMAIN) for row in rows("docs/tasks/claims.md", "What devices say") for key in row.keys]
    published = [
        device
        for what, build in BUILDERS.items()
        if what.startswith("slices") and "NVIDIA" not in what
        for piece in build("1.36.3")
        for device in piece["spec"].get("devices", ())
    ]
    found = {key for device in published for key in (*device["attributes"], *device.get("capacity", ()))}
    assert sorted(told) == sorted(key.removeprefix(DOMAIN) for key in found)
