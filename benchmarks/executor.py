"""The PTX executor against Triton's own interpreter, on the same kernels in one run."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

NAMES = (
    "add of 16M floats",
    "softmax 4096x4096",
    "layer norm 4096x4096",
    "fp16 matmul 1024x1024x1024",
)


def _time(name: str, arm: str) -> dict[str, Any]:
    """One kernel in a process of its own; nothing compiled earlier is reused."""
    env = {**os.environ, "KOPT_PTX_CACHE": "off", "TRITON_DEFAULT_FP_FUSION": "1"}
    if arm == "interpreter":
        env["TRITON_INTERPRET"] = "1"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kernels", name, arm],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    row: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return row


def main() -> None:
    """Print the table, or with `--json` its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    options = parser.parse_args()
    rows = []
    for name in NAMES:
        ours, theirs = _time(name, "kopt"), _time(name, "interpreter")
        rows.append(
            {
                "kernel": name,
                "kopt_s": ours["best_s"],
                "compile_s": ours["first_s"] - ours["best_s"],
                "interpreter_s": theirs["best_s"],
                "ratio": theirs["best_s"] / ours["best_s"],
                "kopt_peak_bytes": ours["peak_bytes"],
                "kopt_error": ours["error"],
            }
        )
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    now = datetime.now(UTC).strftime("%Y-%m-%d")
    print(
        f"{now}, {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}\n"
    )
    print("| kernel | executor | Triton's interpreter | ratio | compiling | peak memory |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['kernel']} | {1000 * row['kopt_s']:.0f} ms | {row['interpreter_s']:.2f} s"
            f" | {row['ratio']:.0f}x | {row['compile_s']:.2f} s"
            f" | {row['kopt_peak_bytes'] / 1e9:.2f} GB |"
        )


if __name__ == "__main__":
    main()
