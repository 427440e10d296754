"""What generated code and the executor share: the slots of a launch's context, 8 bytes each.

One thread of execution owns one context. Array slots hold host addresses.
"""

from __future__ import annotations

PARAMS = 0
"""The kernel's parameter block."""
CTAID, NCTAID, NTID = 1, 4, 7
"""Three slots each: x, y, z."""
SHARED, SHARED_BYTES = 10, 11
LOCAL = 12
"""Local memory of the running warp, one stretch of `local_stride` bytes for each lane."""
CTA, WARP, WARPS = 13, 14, 15
SEGMENTS, SEGMENT_COUNT = 16, 17
"""Rows of `base, nbytes, host - base, shadow - 4 * base` (0 without a shadow)."""
CACHE = 18
"""For each site the segment it used last, see `SEG_*`."""
FINDINGS, FINDING_LIMIT = 19, 20
STATES, STATE_BYTES = 21, 22
"""What each warp keeps across barriers."""
RESUMES = 23
"""For each warp: the block to resume at, with `WAITING` at a barrier; -1 when it has ended."""
CLOCK = 24
"""Grows with each read of a clock."""
STUCK = 25
"""Set when a CTA waits for something that no other running CTA will do."""
LOCAL_SHADOW, SHARED_SHADOW = 26, 27
HALVES, HALF_COUNT = 28, 29
"""Words that a buffer holds only half of, see `EMULATES`: pairs of host address and value."""

# Counters.
BLOCKS, EDGES, GUARDS, SELECTS, TALLIES = 32, 33, 34, 35, 36
ORDERS = 37
"""For each warp: requests to global memory so far in this CTA."""
LINES, LINE_LIMIT, LINE_COUNT, SAMPLE = 38, 39, 40, 41
"""The line log; a line is kept when no bit of `SAMPLE` is set in its hash."""
TOUCHED, TOUCHED_COUNT = 42, 43
"""Pairs `site, segment` in order of first touch."""

SLOTS = 48

SEG_LO, SEG_LIMIT, SEG_DELTA, SEG_SHADOW, SEG_SEEN = range(5)
"""Of a site's cached segment: an access at `a` is inside if `a - lo < limit` (unsigned); its bytes
are at host address `a + delta`, their shadow at `4 * a + shadow`. `SEG_SEEN` is a bit set of the
segments that the site touched (modulo 64)."""
CACHE_SLOTS = 8
"""Of one site, a cache line."""

EMULATES = 1 << 30
"""In a site's number: a 32-bit access that stands for an atomic on 16 bits. Compilers emulate those
on the word around them, which may reach over the end of the buffer; that is no finding."""

FINDING_SLOTS = 4
"""A finding is: site, address, CTA, lane."""

TALLY_SLOTS = 8
"""Of one memory site: requests, lanes, sectors, wavefronts, ideal, most conflicts, conflicts."""
REQUESTS, LANES, SECTORS, WAVEFRONTS, IDEAL, MOST, CONFLICTS = range(7)

BLOCK_SLOTS, EDGE_SLOTS, SELECT_SLOTS = 2, 2, 3
"""Blocks: executions, lanes. Branches: taken, divergent. Selects: executions, all true, all
false."""

WAITING = 1 << 30
FUEL = 1 << 14
"""Back edges of a loop that may spin before the warp lets others run."""
PATIENCE = 1 << 12
"""Rounds without progress after which a CTA counts as stuck."""
LINE_BYTES = 18
"""Size of a row of `kopt.gpu.counters.LINE_LOG`."""
HASH = 0x9E3779B97F4A7C15
"""As in `kopt.gpu.counters.line_hash`, whose result is the product's upper 24 bits."""
