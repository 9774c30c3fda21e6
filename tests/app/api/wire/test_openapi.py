"""The OpenAPI document, as readers of it need it."""

from __future__ import annotations

from pathlib import Path

from app.api.main import create_app
from app.api.schemas.descriptions import OF_SCHEMA, SHARED
from app.api.wire.openapi import components
from app.settings import Settings


def test_every_property_of_every_schema_is_described() -> None:
    missing = [
        f"{name}.{field}"
        for name, schema in components().items()
        for field, declared in schema.get("properties", {}).items()
        if not declared.get("description")
    ]
    assert not missing


def test_descriptions_are_about_properties_that_exist_and_are_each_needed() -> None:
    schemas = components()
    unknown = [
        f"{name}.{field}"
        for name, texts in OF_SCHEMA.items()
        for field, text in texts.items()
        if schemas[name]["properties"][field]["description"] != text
    ]
    assert not unknown
    used = {
        declared["description"] for schema in schemas.values() for declared in schema.get("properties", {}).values()
    }
    assert set(SHARED.values()) <= used


def test_every_parameter_and_response_is_described(tmp_path: Path) -> None:
    app = create_app(Settings(data=tmp_path))
    try:
        operations = {
            f"{method} {path}": operation
            for path, methods in app.openapi()["paths"].items()
            for method, operation in methods.items()
        }
        parameters = [
            f"{name}: {parameter['name']}"
            for name, operation in operations.items()
            for parameter in operation.get("parameters", ())
            if parameter["in"] != "path" and not parameter.get("description")
        ]
        responses = [
            f"{name}: {status}"
            for name, operation in operations.items()
            for status, response in operation["responses"].items()
            if not response.get("description")
        ]
        assert (parameters, responses) == ([], [])
    finally:
        app.state.service.close()
