"""What a candidate does, read from its source and its recorded work before its numbers count.

`cheats` decide; `notes` are for people: a pattern in source text is a hint, never a proof.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from kopt.gpu.trace import Launch, Operator, Trace
from kopt.tools.floats import FORMATS, is_float
from kopt.tools.recognise import dotted, recognise
from kopt.tools.trace_checks import MATRIX_FORMATS, matrix_formats

LIBRARY_OPERATORS = frozenset(
    """
    mm addmm bmm baddbmm addmv mv dot matmul linear einsum convolution cudnn_convolution
    _scaled_mm _softmax _log_softmax native_layer_norm native_batch_norm native_group_norm
    rms_norm _fused_rms_norm scaled_dot_product_attention _scaled_dot_product_flash_attention
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention
    nll_loss_forward cross_entropy_loss gelu silu cumsum sort topk embedding_bag
    """.split()  # noqa: SIM905 - a list of forty quoted words is harder to read
)
"""Operators that are whole kernels of a vendor's library."""

_MOVES = frozenset(
    """
    empty empty_like empty_strided zeros zeros_like ones full fill_ zero_ copy_ clone view
    _to_copy reshape expand permute transpose t slice select as_strided detach unsqueeze
    squeeze _unsafe_view alias contiguous new_empty new_zeros new_empty_strided _reshape_alias
    """.split()  # noqa: SIM905 - a list of forty quoted words is harder to read
)


@dataclass(frozen=True)
class Audit:
    """What was found, in sentences."""

    cheats: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def audit_work(original: Trace, candidate: Trace) -> Audit:
    """Compare the recorded work of the same call: fallbacks, lowered precision, missing work."""
    cheats: list[str] = []
    notes: list[str] = []
    before, after = _operators(original), _operators(candidate)
    launches_before, launches_after = _launches(original), _launches(candidate)
    library = [name for name in after if name in LIBRARY_OPERATORS and name not in before]
    if launches_before and library:
        cheats.append(
            f"it calls PyTorch's own {', '.join(sorted(set(library)))} where the target launches"
            " kernels"
        )
    elif launches_before and not launches_after:
        computes = [name for name in after if name not in _MOVES]
        what = f"runs PyTorch operators ({', '.join(computes[:4])})" if computes else "does no work"
        cheats.append(f"it launches no kernel and {what}, the target launches {launches_before}")
    elif not launches_before and before and not after and not launches_after:
        cheats.append("it does no device work at all")
    lowered = _lowered(original, candidate)
    if lowered:
        cheats.append(lowered)
    if _pins_cache(candidate) and not _pins_cache(original):
        notes.append(
            "it asks the cache to keep lines (evict_last): times with a warm L2 flatter it"
        )
    return Audit(tuple(cheats), tuple(notes))


def audit_source(source: str) -> Audit:
    """Patterns in the source that a reader should look at."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return Audit()
    imports = recognise(tree).imports
    notes = []
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Call):
            name = dotted(node.func, imports)
            if name in _SUSPICIOUS or name.split(".")[0] in _SUSPICIOUS_MODULES:
                notes.append(f"line {line} calls {name}")
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                name = dotted(target, imports) if isinstance(target, ast.Attribute) else ""
                if name.split(".")[0] in ("torch", "triton", "kopt"):
                    notes.append(f"line {line} replaces {name}")
        elif isinstance(node, ast.Try) and any(_calls_torch(h, imports) for h in node.handlers):
            notes.append(f"line {line} falls back to PyTorch when something raises")
    return Audit((), tuple(dict.fromkeys(notes)))


_SUSPICIOUS = frozenset(
    {"sys._getframe", "inspect.stack", "gc.get_objects", "gc.get_referrers", "os._exit", "exec"}
)
_SUSPICIOUS_MODULES = frozenset({"ctypes", "subprocess", "socket", "multiprocessing"})


def _calls_torch(handler: ast.ExceptHandler, imports: dict[str, str]) -> bool:
    calls = (n for n in ast.walk(handler) if isinstance(n, ast.Call))
    return any(dotted(c.func, imports).split(".")[0] == "torch" for c in calls)


def _operators(trace: Trace) -> list[str]:
    """Names without namespace and overload: `aten.mm.default` is `mm`."""
    names = [e.name.split(".") for e in trace.events if isinstance(e, Operator)]
    return [parts[1] if len(parts) > 1 else parts[0] for parts in names]


def _launches(trace: Trace) -> int:
    return sum(isinstance(e, Launch) for e in trace.events)


def _lowered(original: Trace, candidate: Trace) -> str:
    """Matrix instructions on fewer bits than the inputs have and the original ever used."""
    given = [FORMATS[t.dtype].precision for t in original.inputs if is_float(t.dtype)]
    if not given:
        return ""
    lowest_allowed = min([*given, *(MATRIX_FORMATS[f].precision for f in matrix_formats(original))])
    low = [f for f in matrix_formats(candidate) if MATRIX_FORMATS[f].precision < lowest_allowed]
    if not low:
        return ""
    worst = min(low, key=lambda f: MATRIX_FORMATS[f].precision)
    return (
        f"it multiplies matrices in {worst} ({MATRIX_FORMATS[worst].precision} significant bits);"
        f" the task has {lowest_allowed}"
    )


def _pins_cache(trace: Trace) -> bool:
    return any("evict_last" in kernel.ptx for kernel in trace.kernels.values())
