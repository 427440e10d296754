"""The command line as a person meets it: output, exit codes, and one sentence for bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def scale(x):
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y
"""
INPUTS = """

def make_inputs(n=100_000):
    return (torch.randn(n, device="cuda"),)
"""
SECOND = KERNEL[KERNEL.index("def scale(") :].replace("def scale", "def again")


def kopt(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from kopt.cli import main; main()", *args],
        cwd=cwd, capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "XDG_CONFIG_HOME": str(cwd / "home"), **env},
    )  # fmt: skip


def test_help_and_version(tmp_path: Path) -> None:
    done = kopt("--help", cwd=tmp_path)
    assert done.returncode == 0
    for command in ("optimize", "profile", "verify", "bench", "sweep", "devices", "init", "runs"):
        assert command in done.stdout
    assert kopt("--version", cwd=tmp_path).stdout.startswith("kopt ")


def test_devices_as_json(tmp_path: Path) -> None:
    rows = json.loads(kopt("devices", "--json", cwd=tmp_path).stdout)
    assert {"a100", "a10g", "rtx_a6000", "h100_sxm", "h200"} <= {row["name"] for row in rows}


BAD_INPUT = {
    "text": ("hello world", [], 2, "syntax"),
    "no_kernel": ("x = 1\n", [], 2, ""),
    "no_inputs": (KERNEL, [], 2, "kopt init"),
    "two_entries": (KERNEL + SECOND + INPUTS, [], 2, "--entry"),
    "unknown_gpu": (KERNEL + INPUTS, ["--gpu", "a1000"], 2, "a100"),
    "gpu_without_code": (KERNEL + INPUTS, ["--gpu", "h100"], 2, "a100"),
    "import_error": ("import no_such_module\n" + KERNEL + INPUTS, [], 4, "no_such_module"),
    "inputs_fail": (KERNEL + "\n\ndef make_inputs():\n    return 1 / 0\n", [], 4, "ZeroDivision"),
    "entry_fails": (KERNEL.replace("return y", "return y[5, 5]") + INPUTS, [], 4, "IndexError"),
    "too_large": (KERNEL + INPUTS.replace("100_000", "200_000_000_000"), [], 5, "memory"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_gets_one_sentence(name: str, tmp_path: Path) -> None:
    source, flags, code, says = BAD_INPUT[name]
    (tmp_path / "kernel.py").write_text(source)
    done = kopt("optimize", "kernel.py", *flags, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "error: " in done.stderr
    assert says.lower() in done.stderr.lower()
    assert done.stdout == ""
    assert (tmp_path / "kernel.py").read_text() == source


BAD_COMMAND = {
    "no_target": (["optimize"], "kopt optimize kernel.py"),
    "missing_file": (["optimize", "nowhere.py"], "nowhere.py"),
    "folder": (["optimize", "."], "is a folder"),
    "not_text": (["optimize", "bytes.py"], "UTF-8"),
    "unknown_run": (["report", "nothing"], "kopt runs"),
    "unknown_run_to_resume": (["optimize", "--resume", "nothing"], "kopt runs"),
    "old_run": (["report", "old"], "kopt 0.0.1"),
    "old_run_to_resume": (["optimize", "--resume", "old"], "kopt 0.0.1"),
}
OLD_RECORD = '{"schema_version": 0, "kopt_version": "0.0.1"}'


@pytest.mark.parametrize("name", BAD_COMMAND)
def test_bad_command_gets_one_sentence(name: str, tmp_path: Path) -> None:
    arguments, says = BAD_COMMAND[name]
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe")
    old = tmp_path / ".kopt" / "runs" / "old"
    old.mkdir(parents=True)
    (old / "run.json").write_text(OLD_RECORD)
    done = kopt(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 2, "a sentence and what to do"
    assert done.stdout == ""
    assert [path.name for path in old.iterdir()] == ["run.json"]
    assert (old / "run.json").read_text() == OLD_RECORD


def test_unknown_option_in_the_project_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.kopt]\nbudget = 1\n")
    done = kopt("runs", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "did you mean 'budget_s'?" in done.stderr


def test_runs_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL + INPUTS)
    (tmp_path / ".kopt").write_text("a file where the folder should be")
    done = kopt("optimize", "kernel.py", cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_one_run_from_profile_to_report(tmp_path: Path) -> None:
    """A kernel that cannot be made faster, through the commands a person would type."""
    (tmp_path / "kernel.py").write_text(KERNEL + INPUTS)
    done = kopt("optimize", "kernel.py", "--json", "--budget-s", "30", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["status"] in {"no_headroom", "no_gain", "predicted_improved"}
    assert document["baseline"]["provenance"] == "predicted"
    assert document["run_id"] in kopt("runs", cwd=tmp_path).stdout
    report = kopt("report", document["run_id"], cwd=tmp_path)
    assert report.stdout.startswith("# scale: ")
    record = Path(document["folder"]) / "run.json"
    old = json.loads(record.read_text())
    record.write_text(json.dumps({**old, "schema_version": 0}))
    refused = kopt("report", document["run_id"], cwd=tmp_path)
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_verify_says_no_with_exit_code_three(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL + INPUTS)
    (tmp_path / "wrong.py").write_text((KERNEL + INPUTS).replace("2 * tl.load", "3 * tl.load"))
    done = kopt("verify", "wrong.py", "--against", "kernel.py", "--json", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["verdict"]["status"] == "mismatch"


def mounted(options: str, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command with runs on a small disk of its own, which ends with it."""
    disk = cwd / "disk"
    disk.mkdir(exist_ok=True)
    mount = f'mount -t tmpfs -o {options} tmpfs "{disk}"'
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    code = "from kopt.cli import main; main()"
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", code,
         *args],
        cwd=cwd, capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "XDG_CONFIG_HOME": str(cwd / "home"), "KOPT_RUNS": str(disk / "runs")},
    )  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="mount namespaces are Linux's")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("ro", "Read-only"),
        ("size=4k", "no space left"),
        ("size=64k", "no space left"),
        ("size=20m", "no space left"),
    ],
)
def test_disk_that_takes_nothing_more(options: str, says: str, tmp_path: Path) -> None:
    source = KERNEL + INPUTS.replace("100_000", "8_000_000")
    (tmp_path / "kernel.py").write_text(source)
    done = mounted(options, "optimize", "kernel.py", "-q", cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 2, "a sentence and what to do"


def test_old_runs_do_not_hide_the_others(tmp_path: Path) -> None:
    old = tmp_path / ".kopt" / "runs" / "old"
    old.mkdir(parents=True)
    (old / "run.json").write_text(OLD_RECORD)
    done = kopt("runs", "--json", cwd=tmp_path)
    assert done.returncode == 0
    assert json.loads(done.stdout) == []
    assert "kopt 0.0.1" in done.stderr


def test_workload_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL + INPUTS + "\nWORKLOADS = {'big': {'n': 1 << 20}}")
    done = kopt("optimize", "kernel.py", "--workload", "bag", cwd=tmp_path)
    assert done.returncode == 2
    assert "big" in done.stderr


def test_output_never_replaces_the_target(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL + INPUTS)
    done = kopt("optimize", "kernel.py", "-o", "./kernel.py", cwd=tmp_path)
    assert done.returncode == 2
    assert (tmp_path / "kernel.py").read_text() == KERNEL + INPUTS


def test_resume_keeps_what_was_decided(tmp_path: Path) -> None:
    done = kopt("optimize", "--resume", "last", "--gpu", "a10g", cwd=tmp_path)
    assert done.returncode == 2
    assert "--gpu" in done.stderr


@pytest.mark.parametrize("debug", ["", "1"])
def test_internal_error_keeps_its_traceback(debug: str, tmp_path: Path) -> None:
    """A bug is shown as one sentence; its traceback is in a file, or shown when asked for."""
    broken = "import kopt.config\nkopt.config.Config = None\nfrom kopt.cli import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", broken, "runs"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "TMPDIR": str(tmp_path), "KOPT_DEBUG": debug},
    )  # fmt: skip
    assert done.returncode == 1
    assert "error: internal error: " in done.stderr
    kept = list(tmp_path.glob("kopt-error-*.txt"))
    if debug:
        assert "Traceback" in done.stderr
        assert not kept
    else:
        assert "Traceback" not in done.stderr
        assert "Traceback" in kept[0].read_text()
        assert str(kept[0]) in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_is_saved_and_resumed(stop: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL + INPUTS)
    process = subprocess.Popen(
        [sys.executable, "-c", "from kopt.cli import main; main()", "optimize", "kernel.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    records = tmp_path / ".kopt" / "runs"
    deadline = time.monotonic() + 60
    while not list(records.glob("*/events.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(stop)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    (run,) = records.iterdir()
    assert f"kopt optimize --resume {run.name}" in err
    assert "interrupted" in out
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
    assert not (run / "work").exists()
    done = kopt("optimize", "--resume", run.name, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["run_id"] == run.name
    assert document["status"] in {"no_headroom", "no_gain", "predicted_improved"}
    again = kopt("optimize", "--resume", run.name, "--json", cwd=tmp_path)
    assert json.loads(again.stdout) == document, "a finished run has nothing left to do"
