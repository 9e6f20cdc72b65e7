"""The builder of JSON Patches."""

from __future__ import annotations

import jsonpatch

from dradriver.api.base.jsonpatch import Patch, pointer


def test_segments_are_escaped() -> None:
    assert pointer("metadata", "annotations", "gpu.topology/a~b", 0) == "/metadata/annotations/gpu.topology~1a~0b/0"
    assert pointer() == ""


def test_the_operations_do_what_they_say() -> None:
    before = {"a": {"x/y": 1}, "list": ["one", "two"], "keep": True, "drop": None}
    patch = (
        Patch()
        .test("a", "x/y", value=1)
        .add("a", "~new", value={"deep": []})
        .replace("keep", value=False)
        .remove("drop")
        .add("list", "-", value="three")
        .remove("list", 0)
    )

    after = jsonpatch.apply_patch(before, patch.ops)

    assert after == {"a": {"x/y": 1, "~new": {"deep": []}}, "list": ["two", "three"], "keep": False}
    assert len(patch) == 6


def test_an_empty_patch_is_false() -> None:
    assert not Patch()
