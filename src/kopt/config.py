"""Configuration: flag, then `KOPT_*`, then `[tool.kopt]` in the nearest pyproject, then the user's
file, then the default. Unknown keys are errors; secrets come from the environment only."""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from kopt.gpu.errors import UsageError


class Config(BaseModel):
    """What may be configured, with the defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

    gpu: str = "auto"
    """`auto` is the virtual A100 as long as there is no real GPU."""
    sandbox: Literal["auto", "bubblewrap", "local"] = "auto"
    proposer: Literal["playbook"] = "playbook"
    budget_s: float = 60.0
    max_candidates: int = 64
    runs: str = ".kopt/runs"
    """Where runs are kept, relative to the current folder."""


def load(flags: dict[str, object], start: Path | None = None) -> Config:
    """The configuration in force; a flag that is None was not given.

    Raises `UsageError` naming the file or variable, the key and what it may be.
    """
    values: dict[str, object] = {}
    for place, found in _sources(start or Path.cwd()):
        _check(place, found)
        values |= found
    values |= {name: value for name, value in flags.items() if value is not None}
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise _readable(error, "the options given") from error


def _sources(start: Path) -> list[tuple[str, dict[str, object]]]:
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    user = Path(base) / "kopt" / "config.toml"
    found = []
    if user.is_file():
        found.append((str(user), _toml(user)))
    project = _pyproject(start)
    if project is not None:
        table = _toml(project).get("tool", {})
        section = table.get("kopt", {}) if isinstance(table, dict) else {}
        if not isinstance(section, dict):
            raise UsageError(f"{project}: [tool.kopt] must be a table")
        found.append((f"{project} [tool.kopt]", section))
    variables: dict[str, object] = {
        name: os.environ[f"KOPT_{name.upper()}"]
        for name in Config.model_fields
        if f"KOPT_{name.upper()}" in os.environ
    }
    found.append(("KOPT_* variables", variables))
    return found


def _pyproject(start: Path) -> Path | None:
    for folder in (start, *start.parents):
        candidate = folder / "pyproject.toml"
        if candidate.is_file():
            return candidate
    return None


def _toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _check(place: str, values: dict[str, object]) -> None:
    for key in values:
        if key not in Config.model_fields:
            close = difflib.get_close_matches(key, Config.model_fields, 1)
            hint = f"did you mean '{close[0]}'? " if close else ""
            raise UsageError(
                f"{place}: unknown option '{key}'",
                f"{hint}options are {', '.join(Config.model_fields)}",
            )
    try:
        Config.model_validate(values)
    except ValidationError as error:
        raise _readable(error, place) from error


def _readable(error: ValidationError, place: str) -> UsageError:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    return UsageError(f"{place}: '{key}' is {first['input']!r}: {first['msg']}")
