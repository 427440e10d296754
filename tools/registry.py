"""Every tool once: a function from a typed model to a typed model, callable by name with JSON.

A language model, an MCP client and the command line see the same table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import JsonValue, ValidationError

from kopt.gpu.errors import UsageError
from kopt.tools.models import Model

C = TypeVar("C")
"""What tools act on: a session."""
I = TypeVar("I", bound=Model)  # noqa: E741 - input and output, as in the signature below
O = TypeVar("O", bound=Model)  # noqa: E741


@dataclass(frozen=True)
class Tool(Generic[C, I, O]):
    """One tool. `description` is what a model reads to decide whether to call it."""

    name: str
    description: str
    input: type[I]
    output: type[O]
    function: Callable[[C, I], O]

    def call(self, context: C, arguments: str | dict[str, JsonValue]) -> O:
        """Validate the arguments and run the tool.

        Raises `UsageError` naming the arguments that are wrong, in words a model can act on.
        """
        try:
            parsed = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
            given = self.input.model_validate(parsed)
        except json.JSONDecodeError as error:
            raise UsageError(f"{self.name}: the arguments are not JSON: {error}") from error
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(str(p) for p in e['loc']) or 'arguments'}: {e['msg']}"
                for e in error.errors()
            )
            fields = ", ".join(self.input.model_fields) or "none"
            raise UsageError(f"{self.name}: {problems}", f"it takes {fields}") from error
        return self.function(context, given)

    def schema(self) -> dict[str, JsonValue]:
        """The tool as a function of the Chat Completions API, in strict mode."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "strict": True,
                "parameters": strict(self.input.model_json_schema()),
            },
        }


class Registry(Generic[C]):
    """Tools by name."""

    def __init__(self, *tools: Tool[C, I, O]) -> None:
        self._tools: dict[str, Tool[C, Model, Model]] = {}
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool[C, I, O]) -> None:
        """Register a tool. Raises `ValueError` for a name that is taken."""
        if tool.name in self._tools:
            raise ValueError(f"two tools are called {tool.name}")
        self._tools[tool.name] = tool  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Tool[C, Model, Model]]:
        return iter(self._tools.values())

    def get(self, name: str) -> Tool[C, Model, Model]:
        """The named tool. Raises `UsageError` with the names there are."""
        if name not in self._tools:
            raise UsageError(f"no tool is called {name!r}", f"tools: {', '.join(self._tools)}")
        return self._tools[name]

    def schemas(self) -> list[dict[str, JsonValue]]:
        """All tools for a Chat Completions request."""
        return [tool.schema() for tool in self]

    def call(self, context: C, name: str, arguments: str | dict[str, JsonValue]) -> str:
        """Run a tool and give its result as JSON."""
        return self.get(name).call(context, arguments).model_dump_json()


def strict(schema: JsonValue) -> dict[str, JsonValue]:
    """A JSON schema as strict mode wants it: every property required, none besides, no defaults."""
    cleaned = _strict(schema)
    assert isinstance(cleaned, dict)
    return cleaned


def _strict(schema: JsonValue) -> JsonValue:
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {k: _strict(v) for k, v in schema.items() if k not in ("default", "title")}
    properties = schema.get("properties")
    if isinstance(properties, dict):
        result["properties"] = {name: _strict(value) for name, value in properties.items()}
        result["required"] = list(properties)
        result["additionalProperties"] = False
    return result
