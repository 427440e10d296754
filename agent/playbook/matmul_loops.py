"""Two rewrites of loops around `tl.dot`: software pipelining, and dots in the stored dtype."""

from __future__ import annotations

from collections import Counter

import libcst as cst
import libcst.matchers as m

from kopt.agent.playbook.base import CallEvidence, KernelEvidence, Proposal
from kopt.agent.playbook.source import Source, set_arguments
from kopt.agent.playbook.ttir import Loop, Module, Operation
from kopt.tools.models import Effect

_VIEWS = {"tt.trans", "ttg.convert_layout", "tt.reshape", "tt.broadcast"}


def dots(module: Module) -> list[tuple[Operation, Loop]]:
    """`tt.dot` operations with the loop that holds them."""
    return [
        (op, loop)
        for loop in module.loops()
        for op in module.walk(loop.body)
        if op.name == "tt.dot"
    ]


class SoftwarePipelining:
    """Loads feed a dot in a loop, and the PTX has no asynchronous copies."""

    name = "software_pipelining"

    def propose(self, call: CallEvidence) -> list[Proposal]:
        """Three and four stages for each such kernel."""
        found = []
        for kernel in call.ranked:
            if "cp.async" in kernel.kernel.ptx or not self._loads_feed_dot(kernel.ttir):
                continue
            for stages in (3, 4):
                text = self._rewritten(call, kernel, stages)
                if text is not None:
                    found.append(self._proposal(kernel, stages, text))
        return found

    def _loads_feed_dot(self, module: Module) -> bool:
        for dot, loop in dots(module):
            inside = {id(op) for op in module.walk(loop.body)}
            for operand in dot.operands[:2]:
                source = _origin(module, operand)
                if source is not None and source.name == "tt.load" and id(source) in inside:
                    return True
        return False

    def _rewritten(self, call: CallEvidence, kernel: KernelEvidence, stages: int) -> str | None:
        source = Source(call.source)
        sites = source.sites(kernel.kernel.name)
        function = source.functions().get(kernel.kernel.name)
        if len(sites) != 1 or function is None:
            return None
        names = [p.name.value for p in function.params.params]
        held = source.literal(sites[0], "num_stages")
        if "num_stages" in sites[0].arguments and held is None:
            return None
        return source.replace(
            [(sites[0].call, set_arguments(sites[0].call, {"num_stages": str(stages)}, names))]
        )

    def _proposal(self, kernel: KernelEvidence, stages: int, text: str) -> Proposal:
        loads = sum(
            s.requests
            for s in kernel.launch.counters.sites
            if s.kind == "load" and s.space == "global"
        )
        return Proposal(
            technique=self.name,
            source=text,
            rationale=f"load {stages - 1} tiles ahead with cp.async while the dot works on one",
            evidence=(
                f"{kernel.kernel.name} loads tiles with {loads:,} blocking requests and has no"
                " cp.async in its PTX: every dot waits for its own tiles",
            ),
            predicted=(
                Effect(
                    metric="async_copy_stages",
                    before=0.0,
                    after=float(stages - 1),
                    direction="up",
                    sentence="loads overlap with tensor-core work",
                ),
            ),
            conditions="the stages must fit in shared memory; the loop must be longer than them",
        )


class NativeDot:
    """Operands are widened before the dot although the tensor cores take them as they are."""

    name = "dot_in_native_dtype"

    def propose(self, call: CallEvidence) -> list[Proposal]:
        """One proposal for each kernel with such dots."""
        found = []
        for kernel in call.ranked:
            widened = self._widened(kernel.ttir)
            if not widened:
                continue
            text = self._rewritten(call, widened)
            if text is not None:
                found.append(self._proposal(kernel, widened, text))
        return found

    def _widened(self, module: Module) -> list[Operation]:
        """`arith.extf` operations from 16 bits whose only use is as a dot's operand."""
        found = []
        for dot, _ in dots(module):
            pair = [module.definitions.get(o) for o in dot.operands[:2]]
            if not all(
                op is not None
                and op.name == "arith.extf"
                and any(f"x{t}>" in op.text.split(" to ")[0] for t in ("f16", "bf16"))
                for op in pair
            ):
                continue
            both = [op for op in pair if op is not None]
            if all(_uses(module, op) == 1 for op in both):
                found += both
        return found

    def _rewritten(self, call: CallEvidence, widened: list[Operation]) -> str | None:
        source = Source(call.source)
        lines = Counter(op.inner[1] for op in widened)
        pattern = m.Call(
            func=m.Attribute(attr=m.Name("to")),
            args=[m.Arg(value=m.Attribute(attr=m.Name("float32")) | m.Name("float32"))],
        )
        changes: list[tuple[cst.CSTNode, cst.CSTNode]] = []
        for node in source.inside(source.module, cst.Call):
            assert isinstance(node, cst.Call)
            if m.matches(node, pattern) and source.line(node) in lines:
                assert isinstance(node.func, cst.Attribute)
                changes.append((node, node.func.value))
        if Counter(source.line(node) for node, _ in changes) != lines:
            return None  # some cast is written in another way, or serves something else
        return source.replace(changes)

    def _proposal(self, kernel: KernelEvidence, widened: list[Operation], text: str) -> Proposal:
        fma = kernel.launch.compiled.sass.get("ffma", 0)
        tf32 = kernel.launch.compiled.sass.get("hmma_tf32", 0)
        how = f"{fma} FFMA" if not tf32 else f"{tf32} TF32 HMMA"
        where = ", ".join(sorted({str(op.inner[1]) for op in widened}))
        return Proposal(
            technique=self.name,
            source=text,
            rationale=(
                "tensor cores multiply the 16-bit operands exactly and accumulate in fp32, so"
                " widening them first only moves the work to a slower pipe"
            ),
            evidence=(
                f"lines {where} of {kernel.kernel.name} widen 16-bit operands before tl.dot; its"
                f" SASS has {how}",
            ),
            predicted=(
                Effect(metric="tensor_flops", before=None, after=None, direction="up",
                       sentence="the dot runs on 16-bit tensor-core instructions"),
            ),
            conditions="operands that are 16 bits in memory; the accumulator stays fp32",
        )  # fmt: skip


def _uses(module: Module, operation: Operation) -> int:
    """How many operations read a result."""
    return sum(any(r in user.operands for r in operation.results) for user in module.walk())


def _origin(module: Module, value: str) -> Operation | None:
    """The operation behind views, casts and layout changes."""
    operation = module.definitions.get(value)
    while operation is not None and operation.name in {
        *_VIEWS,
        "arith.extf",
        "arith.truncf",
        "tt.fp_to_fp",
    }:
        operation = module.definitions.get(operation.operands[0])
    return operation
