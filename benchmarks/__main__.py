"""`make bench`: every benchmark that needs no data from outside, one after the other."""

from __future__ import annotations

from benchmarks import executor

if __name__ == "__main__":
    executor.main()
