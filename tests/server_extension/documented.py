# SPDX-License-Identifier: BSD-3-Clause
"""Compares the REST API with its OpenAPI document."""

from __future__ import annotations

import json
import re
from typing import Any

from jsonschema import Draft202012Validator
from jupyter_server.serverapp import ServerApp

from jupyter_gpushare.server_extension import openapi
from jupyter_gpushare.server_extension.handlers import GpuShareHandler

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def endpoints(app: ServerApp) -> list[tuple[str, str]]:
    """Return method and path of all that the extension serves, as the server knows it."""
    found = []
    for rule in app.web_app.default_router.rules[0].target.rules:
        target = rule.target
        if isinstance(target, type) and target.__module__.startswith("jupyter_gpushare"):
            path = rule.matcher.regex.pattern.rstrip("$").removeprefix(app.base_url)
            name = "group" if "/reservations/" in path else "page"
            path = path.replace("([^/]+)", name).replace("\\.", ".")
            for method in METHODS:
                if getattr(target, method.lower()) is not getattr(GpuShareHandler, method.lower()):
                    found.append((method, path))
    return found


def operations() -> dict[tuple[str, str], dict[str, Any]]:
    """Return what the document has, by method and path."""
    return {
        (method.upper(), path): operation
        for path, methods in openapi.document("/")["paths"].items()
        for method, operation in methods.items()
        if method != "parameters"
    }


def operation_of(method: str, path: str) -> dict[str, Any]:
    """Return what the document says about a request."""
    for (its, template), operation in operations().items():
        if its == method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path):
            return operation
    raise AssertionError(f"{method} {path} is not in the document")


def check(method: str, path: str, code: int, body: bytes) -> None:
    """Check that an answer is one that the document has."""
    responses = operation_of(method, path)["responses"]
    found = responses.get(str(code), responses.get(f"{code // 100}XX"))
    assert found is not None, f"{method} {path} answers {code}, which is not in the document"
    whole = openapi.document("/")
    if "$ref" in found:
        found = whole["components"]["responses"][found["$ref"].rpartition("/")[2]]
    if "content" not in found:
        assert not body, body
        return
    schema = {**found["content"]["application/json"]["schema"], "components": whole["components"]}
    Draft202012Validator(schema).validate(json.loads(body))
