"""What the warm worker works out once, besides importing, so that no job has to."""

from __future__ import annotations


def warm() -> None:
    """Fill Triton's caches of facts about itself; it runs no operator and starts no thread.

    Its cache key hashes the whole of libtriton, 0.3 s in every process that compiles or finds a
    kernel in the cache.
    """
    import triton.runtime.cache
    from triton.backends.nvidia.compiler import get_ptxas_version

    triton.runtime.cache.triton_key()
    get_ptxas_version()
