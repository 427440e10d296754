"""`kopt devices` and `kopt init`."""

from __future__ import annotations

import json

import typer

from kopt.commands import options
from kopt.gpu.errors import UsageError


def devices(as_json: options.AsJson = False) -> None:
    """List the GPUs that kopt knows."""
    from dataclasses import asdict

    from kopt.gpu.spec import list_specs

    specs = list_specs()
    if as_json:
        typer.echo(json.dumps([asdict(s) for s in specs], indent=2))
        return
    for s in specs:
        runs = "executes code" if s.executes else "facts only"
        typer.echo(
            f"{s.name:12} {s.marketing_name:28} sm_{s.compute_capability}  {s.sms:4} SMs"
            f"  {s.dram_bytes_per_s / 1e12:.2f} TB/s  {runs}"
        )


def init(
    target: options.Target, entry: options.Entry = None, as_json: options.AsJson = False
) -> None:
    """Write `NAME.kopt.py` beside a file that lacks inputs, filled in as far as possible."""
    from kopt.agent.files import explained
    from kopt.tools.sidecar import init_sidecar
    from kopt.tools.target import sidecar_path

    text = init_sidecar(target, entry)
    path = sidecar_path(target)
    if path.exists():
        raise UsageError(f"{path} exists already", "edit it, or remove it first")
    with explained(path):
        path.write_text(text, encoding="utf-8")
    if as_json:
        typer.echo(json.dumps({"sidecar": str(path)}))
    else:
        typer.echo(f"wrote {path}; fill in what is marked, then: kopt optimize {target}")
