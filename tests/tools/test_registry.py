"""Tools are called with JSON, and their schemas are strict."""

from __future__ import annotations

import pytest

from kopt.gpu.errors import UsageError
from kopt.tools.catalogue import judging_tools
from kopt.tools.models import Model
from kopt.tools.registry import Registry, Tool


class Pair(Model):
    """Two numbers."""

    left: int
    right: int | None = None


class Sum(Model):
    """Their sum."""

    value: int


def add(offset: int, pair: Pair) -> Sum:
    return Sum(value=offset + pair.left + (pair.right or 0))


@pytest.fixture
def tools() -> Registry[int]:
    registry: Registry[int] = Registry()
    registry.add(Tool("add", "Adds.", Pair, Sum, add))
    return registry


def test_a_tool_is_called_by_name_with_json(tools: Registry[int]) -> None:
    assert tools.call(10, "add", '{"left": 1, "right": 2}') == '{"value":13}'
    assert tools.call(10, "add", {"left": 1}) == '{"value":11}'


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("sub", "{}", "no tool is called 'sub'"),
        ("add", "{", "not JSON"),
        ("add", "[]", "arguments"),
        ("add", "{}", "left"),
        ("add", '{"left": 1, "extra": 2}', "extra"),
    ],
)
def test_wrong_calls_say_what_is_wrong(
    tools: Registry[int], name: str, arguments: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        tools.call(0, name, arguments)


def test_a_name_is_taken_once(tools: Registry[int]) -> None:
    with pytest.raises(ValueError, match="add"):
        tools.add(Tool("add", "", Pair, Sum, add))


def test_schemas_are_strict(tools: Registry[int]) -> None:
    (schema,) = tools.schemas()
    function = schema["function"]
    assert isinstance(function, dict)
    assert function["strict"] is True
    parameters = function["parameters"]
    assert isinstance(parameters, dict)
    assert parameters["required"] == ["left", "right"]
    assert parameters["additionalProperties"] is False
    assert "default" not in str(parameters)


def test_every_judging_tool_has_a_description_and_a_closed_schema() -> None:
    schemas = judging_tools().schemas()
    assert len(schemas) == 6
    for schema in schemas:
        function = schema["function"]
        assert isinstance(function, dict)
        assert len(str(function["description"])) > 20
        assert '"additionalProperties": False' in str(function).replace("'", '"')
