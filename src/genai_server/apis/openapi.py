"""Builds /openapi.json, the OpenAPI document of the server, so that code generators make readable clients from it.
`documented` replaces FastAPI's own function.

A generated client has a function for each operation and a type for each enum. FastAPI's operation ids contain the path,
and pydantic repeats an enum without a name in each field. Here, operations are named after their functions, and enums
have names.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, get_args

from fastapi import FastAPI
from pydantic import BaseModel

from genai_server.apis.messages.schemas import AnthropicErrorResponse
from genai_server.apis.ollama.schemas import OllamaErrorResponse
from genai_server.apis.responses.item_schemas import Status
from genai_server.apis.responses.schemas import Include
from genai_server.apis.shared.router import REFERENCE
from genai_server.generation.parameters.base import ErrorResponse
from genai_server.generation.parameters.chat_messages import ImageDetail, ReasoningEffort
from genai_server.http.json_response import JsonObject

# Enums that several fields have, with their names. Others are named after their model and field.
_SHARED: dict[tuple[Any, ...], str] = {
    get_args(ReasoningEffort): "ReasoningEffort",
    get_args(ImageDetail): "ImageDetail",
    get_args(Status): "ItemStatus",
    get_args(Include): "Include",
    ("none", "auto", "required"): "ToolChoiceMode",
    ("auto", "required"): "AllowedToolsMode",
    ("direct", "programmatic"): "AllowedCaller",
    ("server", "client"): "ToolSearchExecution",
    ("asc", "desc"): "Order",
}
# The forms of errors, to which the routes refer (apis/shared/router.py).
_ERRORS: tuple[type[BaseModel], ...] = (ErrorResponse, AnthropicErrorResponse, OllamaErrorResponse)


def documented(app: FastAPI) -> Callable[[], JsonObject]:
    """Return a function to replace `app.openapi`. That function returns FastAPI's OpenAPI document, in which operations
    are named after their functions, enums have names, and the schemas of errors are included. The document is built
    once.
    """
    build = app.openapi

    def document() -> JsonObject:
        if app.openapi_schema is None:
            openapi = build()
            _name_operations(openapi["paths"])
            schemas: JsonObject = openapi["components"]["schemas"]
            for error in _ERRORS:
                schema = error.model_json_schema(ref_template=f"{REFERENCE}{{model}}")
                schemas |= {**schema.pop("$defs", {}), error.__name__: schema}
            for model, schema in list(schemas.items()):
                for field, inner in schema.get("properties", {}).items():
                    _name_enums(inner, f"{model}{_camel(field)}", schemas)
            for _, _, operation in _operations(openapi["paths"]):
                for parameter in operation.get("parameters", ()):
                    name = f"{_camel(operation['operationId'])}{_camel(parameter['name'])}"
                    _name_enums(parameter["schema"], name, schemas)
            app.openapi_schema = openapi
        return app.openapi_schema

    return document


def _operations(paths: JsonObject) -> Iterator[tuple[str, str, JsonObject]]:
    """Yield the path, the HTTP method and the description of each operation in the field `paths` of
    an OpenAPI document.
    """
    for path, methods in paths.items():
        for method, operation in methods.items():
            yield path, method, operation


def _name_operations(paths: JsonObject) -> None:
    """Change the ids of the operations in an OpenAPI document's field `paths` to the names of their functions, and the
    titles of their responses accordingly.

    If several operations have the same name, the one below /v1 gets it. The others get the name with their tag in
    front, or with `_without_version` appended if they have the same tag as the operation below /v1.
    """
    tags: dict[str, Any] = {}
    for path, method, operation in sorted(_operations(paths), key=lambda entry: not entry[0].startswith("/v1/")):
        # FastAPI's id is the name of the function, the path and the method.
        path_in_id = re.sub(r"\W", "_", path)
        name = operation["operationId"].removesuffix(f"{path_in_id}_{method}").strip("_")
        tag = next(iter(operation.get("tags", ())), "")
        if name not in tags:
            tags[name] = tag
        else:
            name = f"{name}_without_version" if tags[name] == tag else f"{tag}_{name}"
        operation["operationId"] = name
        for content in operation["responses"].get("200", {}).get("content", {}).values():
            if content.get("schema", {}).get("title", "").startswith("Response "):
                content["schema"]["title"] = f"{_camel(name)}Response"


def _name_enums(schema: JsonObject, name: str, schemas: JsonObject) -> None:
    """Move the enums in a field's schema to `schemas`, which has the document's named schemas, and leave references to
    them in the field's schema. Changes both `schema` and `schemas`.

    An enum that several fields have in common gets the name that `_SHARED` lists for it; any other enum gets the name
    `name`.
    """
    for inner in (*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())):
        _name_enums(inner, name, schemas)
    values = tuple(schema.get("enum", ()))
    if len(values) < 2:
        return
    name = _SHARED.get(values, name)
    schemas[name] = {"type": schema.pop("type"), "enum": schema.pop("enum"), "title": name}
    schema["$ref"] = f"{REFERENCE}{name}"


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.replace("[", "_").replace("]", "_").split("_"))
