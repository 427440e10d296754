"""kopt: make a GPU kernel faster and prove what is claimed."""

from __future__ import annotations

__version__ = "0.1.0"
