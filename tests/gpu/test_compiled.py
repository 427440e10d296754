"""What ptxas makes of PTX: registers, spills, SASS, and a warp's path through it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kopt.gpu import compiled, sass
from kopt.gpu.spec import DeviceSpec, load_spec
from kopt.gpu.trace import Kernel

HEAD = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 src, .param .u64 dst, .param .u32 n)
.reqntid 128
{
  .reg .pred %p<4>; .reg .b32 %r<64>; .reg .f32 %f<64>; .reg .b64 %rd<16>;
  ld.param.u64 %rd1, [src]; ld.param.u64 %rd2, [dst]; ld.param.u32 %r1, [n];
  cvta.to.global.u64 %rd1, %rd1; cvta.to.global.u64 %rd2, %rd2;
  mov.u32 %r2, %tid.x; mul.wide.u32 %rd3, %r2, 4;
  add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;
"""
STRAIGHT = (
    HEAD
    + """
  ld.global.f32 %f1, [%rd4]; ld.global.f32 %f2, [%rd4+512];
  add.f32 %f3, %f1, %f2; st.global.f32 [%rd5], %f3; ret;
}
"""
)
CHAIN = (
    HEAD
    + """
  ld.global.u32 %r3, [%rd4]; mul.wide.u32 %rd6, %r3, 4; add.s64 %rd7, %rd1, %rd6;
  ld.global.f32 %f2, [%rd7]; st.global.f32 [%rd5], %f2; ret;
}
"""
)
LOOP = (
    HEAD
    + """
  mov.f32 %f1, 0f00000000; mov.u32 %r4, 0;
$top:
  ld.global.u64 %rd4, [%rd4]; add.f32 %f1, %f1, 0f3F000000;
  ex2.approx.f32 %f1, %f1; bar.sync 0;
  add.s32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, %r1; @%p1 bra $top;
  st.global.f32 [%rd5], %f1; st.global.u64 [%rd5+4096], %rd4; ret;
}
"""
)


def kernel(ptx: str, shared: int = 0) -> Kernel:
    """A kernel of four warps."""
    return Kernel("key", "k", "k.py", 1, ptx, "", "", 4, 1, shared, "sm_80")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOPT_CACHE_DIR", str(tmp_path))


@pytest.fixture
def a100() -> DeviceSpec:
    return load_spec("a100")


def test_registers_shared_memory_and_occupancy(a100: DeviceSpec) -> None:
    found = compiled.facts(kernel(STRAIGHT, shared=60_000), a100)
    assert 4 < found.registers <= 32
    assert found.spill_load_bytes == found.spill_store_bytes == 0
    assert (found.ctas_per_sm, found.limiter) == (2, "shared_memory")
    assert found.occupancy == pytest.approx(8 / 64)
    assert (found.sass["ldg"], found.sass["stg"], found.sass["fadd"]) == (2, 1, 1)
    assert not found.sass_loop


def test_a_forced_register_limit_spills(a100: DeviceSpec) -> None:
    loads = "".join(f"ld.global.f32 %f{n}, [%rd4+{512 * n}];" for n in range(1, 50))
    stores = "".join(f"st.global.f32 [%rd5+{512 * n}], %f{n};" for n in range(1, 50))
    ptx = (HEAD + loads + "bar.sync 0;" + stores + "ret;\n}").replace(
        ".reqntid 128", ".reqntid 128\n.maxnreg 24"
    )
    found = compiled.facts(kernel(ptx), a100)
    assert found.spill_store_bytes > 0
    assert found.sass["ldl"] > 0


def test_what_ptxas_refuses_is_named(a100: DeviceSpec) -> None:
    with pytest.raises(compiled.AssemblyError, match="ptxas refuses k"):
        compiled.facts(kernel(STRAIGHT.replace("add.f32", "add.f31")), a100)


def test_independent_loads_are_waited_for_together(a100: DeviceSpec) -> None:
    """Two loads at once take one latency, a load whose address was loaded takes two."""
    together = compiled.facts(kernel(STRAIGHT), a100)
    chained = compiled.facts(kernel(CHAIN), a100)
    latency = a100.dram_latency_cycles
    assert together.loads_in_flight == 2
    assert chained.loads_in_flight == 1
    assert 0.9 * latency < together.straight.waits["global"] < 1.2 * latency
    assert chained.straight.waits["global"] > 1.9 * latency
    assert chained.straight.l1_cycles < chained.straight.l2_cycles < chained.straight.dram_cycles


def test_loops_are_kept_apart(a100: DeviceSpec) -> None:
    found = compiled.facts(kernel(LOOP), a100)
    # A chain of pointers. ptxas may unroll it: loads, barriers and special functions stay as many
    # as each other, and each load is waited for.
    inside = found.sass_loop
    assert inside["ldg"] == inside["bar"] == inside["mufu"] > 0
    assert found.sass["stg"] == 2
    assert "stg" not in inside
    assert found.loop.waits["global"] > 0.8 * a100.dram_latency_cycles * inside["ldg"]


def test_the_cache_answers_without_ptxas(a100: DeviceSpec, tmp_path: Path) -> None:
    first = compiled.facts(kernel(STRAIGHT), a100)
    [entry] = tmp_path.rglob("*.json")
    stored = entry.read_text(encoding="utf-8")
    entry.write_text(stored.replace(f'"registers": {first.registers}', '"registers": 77'))
    assert compiled.facts(kernel(STRAIGHT), a100).registers == 77
    # Other latencies are another entry; a broken entry is made again.
    slower = replace(a100, dram_latency_cycles=2 * a100.dram_latency_cycles)
    assert compiled.facts(kernel(STRAIGHT), slower).registers == first.registers
    entry.write_text("{")
    assert compiled.facts(kernel(STRAIGHT), a100).registers == first.registers


def test_a_cache_that_cannot_be_written_costs_nothing_else(
    a100: DeviceSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("KOPT_CACHE_DIR", str(blocked))
    assert compiled.facts(kernel(STRAIGHT), a100).sass["ldg"] == 2


@pytest.mark.parametrize(
    ("opcode", "pipe"),
    [("FFMA.FTZ", "fma"), ("IMAD.WIDE", "fma"), ("LOP3.LUT", "alu"), ("MUFU.EX2", "xu"),
     ("HMMA.16816.F32", "tensor"), ("LDG.E.128", "lsu"), ("UIADD3", "uniform"), ("BRA", "control"),
     ("HFMA2.MMA", "fp16"), ("DFMA", "fp64")],
)  # fmt: skip
def test_pipes(opcode: str, pipe: str) -> None:
    assert sass.pipe(opcode) == pipe
