"""Errors that stop a command. A candidate that fails is a verdict, never one of these."""

from __future__ import annotations


class KoptError(Exception):
    """An infrastructure failure: what happened, and what the user can do about it.

    The command line prints `message` and `hint` on one line each and exits with `exit_code`.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class UsageError(KoptError):
    """The command, the configuration or the target file cannot be understood."""

    exit_code = 2


class TargetError(KoptError):
    """The target itself fails: it does not import, does not run, or fails its own check."""

    exit_code = 4


class EnvironmentLacks(KoptError):
    """The machine lacks a tool, memory, disk space or a permission."""

    exit_code = 5


class Unsupported(KoptError):
    """The virtual GPU does not execute this instruction or operator; judging it would be a guess.

    Callers that judge candidates turn it into the verdict `unjudged`.
    """

    exit_code = 4
