# SPDX-License-Identifier: BSD-3-Clause
"""The OpenAPI document: whole, valid, and true. The fixture ``jp_fetch`` compares each answer of all tests with it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, get_args

import pytest
from jsonschema import ValidationError
from jupyter_server.serverapp import ServerApp
from openapi_spec_validator import OpenAPIV31SpecValidator

from jupyter_gpushare._version import __version__
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol.bodies import BODIES
from jupyter_gpushare.server_extension import openapi
from tests.server_extension.documented import check, endpoints, operations

Fetch = Callable[..., Awaitable[Any]]


def test_the_document_has_every_path_and_method(jp_serverapp: ServerApp) -> None:
    served = {
        (method, f"/{path}".replace("/page", "/{page}").replace("/group", "/{group}"))
        for method, path in endpoints(jp_serverapp)
    }
    assert operations().keys() == served


def test_the_document_is_valid() -> None:
    OpenAPIV31SpecValidator(openapi.document("/")).validate()
    names = [one["operationId"] for one in operations().values()]
    assert len(set(names)) == len(names)


def test_classes_and_parameters_are_those_of_the_scheduler() -> None:
    schemas = openapi.document("/")["components"]["schemas"]
    assert tuple(schemas["Class"]["enum"]) == get_args(ev.Class)
    assert tuple(schemas["Priority"]["enum"]) == get_args(ev.Priority)
    asked = operations()["GET", "/gpushare/api/when"]["parameters"]
    assert {one["name"] for one in asked} == set(BODIES["when"].__struct_fields__)
    stated = operations()["POST", "/gpushare/api/settings"]["requestBody"]["content"]
    settings = set(stated["application/json"]["schema"]["properties"])
    assert settings == set(BODIES["set"].__struct_fields__)
    assert settings < schemas["Settings"]["properties"].keys()


def test_an_answer_that_does_not_fit_is_noticed() -> None:
    check("POST", "/gpushare/api/release", 200, b'{"group": "a"}')
    with pytest.raises(ValidationError):
        check("POST", "/gpushare/api/release", 200, b'{"group": 7}')
    with pytest.raises(AssertionError, match="is not in the document"):
        check("POST", "/gpushare/api/release", 500, b"{}")
    with pytest.raises(AssertionError, match="is not in the document"):
        check("PUT", "/gpushare/api/release", 200, b"{}")


async def test_the_document_is_served(jp_fetch: Fetch, jp_base_url: str) -> None:
    found = json.loads((await jp_fetch("gpushare/api/openapi.json")).body)
    assert found["info"]["version"] == __version__
    assert found["servers"] == [{"url": jp_base_url.rstrip("/")}]
    assert openapi.document("/")["servers"] == [{"url": "/"}]


@pytest.mark.usefixtures("holder")
async def test_forecasts(gpu: dict[str, Any], jp_fetch: Fetch) -> None:
    async def when(**params: str) -> Any:
        found = await jp_fetch("gpushare/api/when", params=params)
        return json.loads(found.body)["when"]

    assert (await when(group="train.ipynb"))["reason"]["code"] == "has_lease"
    found = await when(bytes=str(gpu["total"] // 2), priority="background", gpu="0")
    assert found["reason"]["code"] == "needs_memory"
    assert found["text"].startswith("It can run in ")
    for params, code, text in (
        ({"group": "nobody"}, 404, "no group"),
        ({}, 400, "either which notebook"),
        ({"bytes": "much"}, 400, "'bytes' must be a whole number"),
        ({"bytes": "1", "priority": "royal"}, 400, "'priority' must be one of"),
    ):
        refused = await jp_fetch("gpushare/api/when", params=params, raise_error=False)
        assert refused.code == code
        assert text in json.loads(refused.body)["message"]


async def test_explanations_have_sentences_if_they_are_requested(
    scheduler: Any, jp_fetch: Fetch
) -> None:
    for params, has in (({}, False), ({"text": "1"}, True)):
        answer = json.loads((await jp_fetch("gpushare/api/explain", params=params)).body)
        assert ("lines" in answer["explanation"]) == has
