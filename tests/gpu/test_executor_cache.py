"""Compiled kernels on disk, other CPUs, and machine code that lacks a library routine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kopt.gpu.errors import Unsupported
from kopt.gpu.virtual import executor
from kopt.gpu.virtual.arrays import Program
from kopt.gpu.virtual.ptx import jit
from kopt.gpu.virtual.ptx.flow import analyse
from kopt.gpu.virtual.ptx.ir import Routine
from kopt.gpu.virtual.ptx.jit import Compiled, Cpu, cache_folder, compile_text
from kopt.gpu.virtual.ptx.parse import parse
from kopt.gpu.virtual.ptx.translate import Translation, Translator, translation

PTX = """
.version 8.4
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p0)
.reqntid 64
{
.reg .pred %p<4>; .reg .f32 %f<4>; .reg .b16 %h<4>; .reg .b32 %r<8>; .reg .b64 %rd<8>;
ld.param.u64 %rd0, [p0]; mov.u32 %r0, %tid.x;
LOOP:
add.u32 %r1, %r1, 3; setp.lt.u32 %p1, %r1, %r0; @%p1 bra LOOP;
bar.sync 0;
cvt.rn.f32.u32 %f0, %r1; ex2.approx.f32 %f1, %f0; cvt.rn.f16.f32 %h0, %f1;
mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd1, %rd0;
ld.global.u32 %r2, [%rd1]; atom.global.add.u32 %r3, [%rd1], %r2; st.global.u32 [%rd1], %r3;
ret;
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KOPT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("KOPT_PTX_CACHE", raising=False)
    jit._routine_object.cache_clear()
    return tmp_path / "cache"


def module() -> Translation:
    entry = parse(PTX, "k")
    return translation(Translator(entry, analyse(entry), counted=False))


def compiled() -> Compiled:
    made = module()
    return Compiled(made.text, made.routines, made.effort)


def files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def test_a_kernel_is_compiled_once(folder: Path) -> None:
    assert not compiled().was_cached
    before = {p: p.stat().st_mtime_ns for p in files(folder)}
    assert compiled().was_cached
    assert {p: p.stat().st_mtime_ns for p in files(folder)} == before
    assert all(p.stat().st_mode & 0o077 == 0 for p in folder.rglob("*") if p.is_dir())
    assert not any(p.name.startswith("tmp") for p in before)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text"])
def test_a_damaged_file_is_compiled_again(folder: Path, damage: str) -> None:
    compiled()
    whole = {p: p.read_bytes() for p in files(folder)}
    for path, data in whole.items():
        middle = len(data) // 2
        path.write_bytes(
            {
                "cut": data[:middle],
                "flip": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
                "empty": b"",
                "text": b"not machine code",
            }[damage]
        )
    jit._routine_object.cache_clear()
    assert not compiled().was_cached
    assert {p: p.read_bytes() for p in files(folder)} == whole


def test_the_cache_can_be_turned_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOPT_PTX_CACHE", "off")
    compiled()
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_only_costs_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.parent.joinpath("file").write_text("")
    monkeypatch.setenv("KOPT_CACHE_DIR", str(folder.parent / "file" / "below"))
    assert not compiled().was_cached


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOPT_CACHE_DIR", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_folder() == Path("/a")
    monkeypatch.delenv("KOPT_CACHE_DIR")
    assert cache_folder() == Path("/b/kopt")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "kopt"


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64", "skylake-avx512"])
def test_code_for_other_cpus_needs_no_library(name: str) -> None:
    """Every routine compiles for CPUs without AVX-512 too, with no call into a runtime library."""
    import llvmlite.binding as llvm

    if not llvm.get_default_triple().startswith("x86_64"):
        pytest.skip("these are names of x86-64 CPUs")
    jit.host()
    cpu = Cpu(name, "")
    made = module()
    parts = [made.text]
    for routine in jit._closure(made.routines):
        parts.append(jit.routine_text(routine))
    allowed = {"memset", "memcpy", "memmove"}
    if name == "x86-64":
        # Old CPUs have no instruction for these.
        allowed |= {"fmaf", "fma", "rintf", "__truncsfhf2", "__extendhfsf2"}
    own = {routine.name for routine in jit._closure(made.routines)}
    for text in parts:
        missing = jit.needed(compile_text(text, cpu, 1)) - own
        assert missing <= allowed, missing


def test_a_missing_library_routine_is_an_error_and_no_crash() -> None:
    text = "define fastcc void @lost() #0 {\n call void @no_such_routine()\n ret void\n}\n"
    routine = Routine("lost", "void", (), "declare void @no_such_routine()\n" + text)
    with pytest.raises(Unsupported, match="no_such_routine"):
        Compiled(module().text, [routine, *module().routines])


def test_many_kernels_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading more kernels than are kept frees the oldest ones, and the rest still run."""
    monkeypatch.setattr(executor, "_KEEP", 4)
    for n in range(40):
        out = np.zeros(1, np.uint32)
        text = f"""
.version 8.4
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p0)
.reqntid 32
{{ .reg .b64 %rd<2>; .reg .b32 %r<2>;
ld.param.u64 %rd0, [p0]; mov.u32 %r0, {n}; st.global.u32 [%rd0], %r0; ret; }}
"""
        Program(text, "k", 32, 0).run((1,), out)
        assert out[0] == n
    assert len(executor._LOADED) == 4
