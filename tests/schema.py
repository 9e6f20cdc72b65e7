"""Strict schemas of Kubernetes objects, offline: a field or type that the API does not know fails."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any, Final

import jsonschema
import referencing
from kubernetes_validate import ValidationError, utils

MINORS = ("1.34", "1.35", "1.36", "1.37")
# The domain of a group is not part of a schema's file name: rbac.authorization.k8s.io/v1 is rbac-v1.
_GROUP: Final = re.compile(r"^([^./]*)(?:\.[^/]*)?/")


def check(obj: dict[str, Any], *, minors: Sequence[str] = MINORS) -> None:
    """Fail unless the object is valid in every one of these Kubernetes releases.

    Raises:
        ValidationError: A field that the schema does not have, or a value of another type.
        FileNotFoundError: Kubernetes has no such kind.
    """
    for minor in minors:
        try:
            _validator(minor, obj["apiVersion"], obj["kind"]).validate(obj)
        except jsonschema.ValidationError as error:
            raise ValidationError(error, version=minor) from error


# kubernetes_validate.validate reads 1.6 MB of definitions for each object, which takes 10 ms.
@functools.cache
def _validator(minor: str, api_version: str, kind: str) -> jsonschema.Draft202012Validator:
    """Return the validator that ``kubernetes_validate.validate(strict=True)`` makes."""
    version = _GROUP.sub(r"\1-", api_version)
    schema = utils.schema_contents(f"{_folder(minor)}/{kind.lower()}-{version}.json", minor)
    registry = referencing.Resource.from_contents(schema) @ _definitions(minor)
    return jsonschema.Draft202012Validator(schema, registry=registry)


@functools.cache
def _definitions(minor: str) -> referencing.Registry[Any]:
    definitions = utils.schema_contents(f"{_folder(minor)}/_definitions.json", minor)
    return (referencing.Resource.from_contents(definitions) @ referencing.Registry()).crawl()


def _folder(minor: str) -> str:
    return f"kubernetes-json-schema/v{minor}.0-local-strict"
