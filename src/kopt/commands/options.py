"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[Path, typer.Argument(help="Python file with Triton kernels and an entry.")]
Entry = Annotated[str | None, typer.Option("--entry", help="Function whose calls are compared.")]
Gpu = Annotated[str | None, typer.Option("--gpu", help="Device to judge on; see `kopt devices`.")]
Box = Annotated[
    str | None, typer.Option("--sandbox", help="Where candidates run: auto, bubblewrap or local.")
]
Workloads = Annotated[
    list[str] | None,
    typer.Option("--workload", help="Only this one of WORKLOADS; may be given again."),
]
Seed = Annotated[
    int | None, typer.Option("--seed", help="Repeat hidden inputs; without it they are secret.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
