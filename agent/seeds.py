"""The run's secret, from which every hidden seed is derived; it lies where no sandbox looks."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from kopt.agent.files import explained, write_atomically
from kopt.gpu.errors import EnvironmentLacks

STATE_DIR = "KOPT_STATE_DIR"


def state_folder() -> Path:
    """`$KOPT_STATE_DIR`, else `kopt` below the user's XDG state folder."""
    if given := os.environ.get(STATE_DIR):
        return Path(given).expanduser().absolute()
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser().absolute() / "kopt"


def new_secret(seed: int | None) -> bytes:
    """32 random bytes, or those that a user's `--seed` stands for."""
    if seed is None:
        return secrets.token_bytes(32)
    return hashlib.sha256(f"kopt seed {seed}".encode()).digest()


def commitment(secret: bytes) -> str:
    """What `run.json` says about the secret without giving it away."""
    return hashlib.sha256(b"kopt commitment" + secret).hexdigest()


def store_secret(run_id: str, secret: bytes) -> None:
    """Keep the secret for a resume, readable by this user only."""
    folder = state_folder() / "seeds"
    try:
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(folder / run_id, secret.hex(), mode=0o600)
    except EnvironmentLacks as error:
        raise EnvironmentLacks(error.message, f"choose another folder: {STATE_DIR}=DIR") from error


def load_secret(run_id: str, committed: str) -> bytes:
    """The stored secret. Raises `EnvironmentLacks` when it is gone or is another one."""
    path = state_folder() / "seeds" / run_id
    try:
        secret = bytes.fromhex(path.read_text())
    except (OSError, ValueError) as error:
        raise EnvironmentLacks(
            f"the seeds of run {run_id} cannot be read from {path}",
            f"they stay where the run began (or in {STATE_DIR}); start a new run",
        ) from error
    if commitment(secret) != committed:
        raise EnvironmentLacks(
            f"the seeds in {path} are not those that run {run_id} committed to",
            "start a new run",
        )
    return secret
