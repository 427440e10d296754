"""Merge the pass for the maximum with the pass for the sum of exponentials."""

from __future__ import annotations

from itertools import pairwise

import libcst as cst
import libcst.matchers as m

from kopt.agent.playbook.base import CallEvidence, KernelEvidence, Proposal
from kopt.agent.playbook.loops import (
    RowLoop,
    located,
    reread_sentence,
    row_loops,
    siblings,
)
from kopt.agent.playbook.source import (
    Source,
    fresh_name,
    names_read,
    rename_variable,
    substitute,
    target_name,
)
from kopt.agent.playbook.ttir import Module, Operation
from kopt.tools.models import Effect

EXPONENTIALS = {"math.exp", "math.exp2"}


class OnlineSoftmax:
    """A loop with a running maximum, then one with a sum of exponentials of the difference."""

    name = "online_maximum_and_sum"

    def propose(self, call: CallEvidence) -> list[Proposal]:
        """One proposal for each such pair of loops."""
        found = []
        for kernel in call.ranked:
            for group in siblings(row_loops(kernel)):
                for first, second in pairwise(group):
                    proposal = self._pair(call, kernel, first, second, len(group))
                    if proposal is not None:
                        found.append(proposal)
        return found

    def _pair(
        self,
        call: CallEvidence,
        kernel: KernelEvidence,
        first: RowLoop,
        second: RowLoop,
        passes: int,
    ) -> Proposal | None:
        module = kernel.ttir
        if not (first.keys & second.keys):
            return None
        if not _is_maximum(module, first) or not _is_sum_of_exponentials(module, first, second):
            return None
        texts = (_rewritten(*found) for found in located(call, kernel, [first, second]))
        text = next((t for t in texts if t is not None), None)
        if text is None:
            return None
        traffic = kernel.launch.traffic
        return Proposal(
            technique=self.name,
            source=text,
            rationale=(
                "a running maximum can correct the running sum when it grows, so maximum and sum"
                f" need one pass over the row: {passes - 1} passes remain of {passes}"
            ),
            evidence=(reread_sentence(call, kernel, [first, second]),),
            predicted=(
                Effect(
                    metric="dram_read_over_compulsory",
                    before=traffic.dram_read_bytes / max(1, traffic.compulsory_read_bytes),
                    after=(passes - 1)
                    / passes
                    * traffic.dram_read_bytes
                    / max(1, traffic.compulsory_read_bytes),
                    direction="down",
                    sentence="one pass over the row less",
                ),
            ),
            conditions=(
                "pays where the rows do not stay in a cache between passes; a row whose first block"
                " is all -inf needs a guard"
            ),
        )


def _is_maximum(module: Module, loop: RowLoop) -> bool:
    """One carried value, combined with a maximum over the loaded block."""
    for carried, yielded in zip(loop.loop.carried, loop.loop.yields, strict=False):
        operation = module.definitions.get(yielded)
        if operation is None or operation.name not in {"arith.maxnumf", "arith.maximumf"}:
            continue
        if carried not in operation.operands:
            continue
        other = next(o for o in operation.operands if o != carried)
        reduce = module.definitions.get(other)
        if (
            reduce is not None
            and reduce.name == "tt.reduce"
            and module.combine(reduce) in {"arith.maxnumf", "arith.maximumf"}
        ):
            return True
    return False


def _is_sum_of_exponentials(module: Module, first: RowLoop, second: RowLoop) -> bool:
    """A carried sum over exp(load - maximum), where the maximum comes from the first loop."""
    results = set(first.loop.operation.results)
    for carried, yielded in zip(second.loop.carried, second.loop.yields, strict=False):
        operation = module.definitions.get(yielded)
        if operation is None or operation.name != "arith.addf" or carried not in operation.operands:
            continue
        other = next(o for o in operation.operands if o != carried)
        reduce = module.definitions.get(other)
        if reduce is None or reduce.name != "tt.reduce" or module.combine(reduce) != "arith.addf":
            continue
        for inner in _backward(module, reduce.operands[0]):
            if inner.name in EXPONENTIALS and any(
                module.depends(inner.operands[0], r) for r in results
            ):
                return True
    return False


def _backward(module: Module, value: str) -> list[Operation]:
    found, stack, seen = [], [value], set()
    while stack:
        operation = module.definitions.get(stack.pop())
        if operation is None or id(operation) in seen or operation.regions:
            continue
        seen.add(id(operation))
        found.append(operation)
        stack.extend(operation.operands)
    return found


def _rewritten(source: Source, fors: list[cst.For]) -> str | None:
    one, two = fors
    owner = source.parent(one)
    if not isinstance(owner, cst.IndentedBlock):
        return None
    assert isinstance(one.body, cst.IndentedBlock)
    assert isinstance(two.body, cst.IndentedBlock)
    assert isinstance(one.target, cst.Name)
    assert isinstance(two.target, cst.Name)
    maximum = _update(one.body.body, "max")
    total = _update(two.body.body, "sum")
    if maximum is None or total is None:
        return None
    peak, sums = target_name(maximum), target_name(total)
    if peak is None or sums is None or peak not in names_read(total):
        return None
    position_one, position_two = owner.body.index(one), owner.body.index(two)
    between = owner.body[position_one + 1 : position_two]
    if any(peak in names_read(s) for s in between):
        return None
    new_peak = fresh_name(f"new_{peak}", source.module)
    scale = _scale(total, peak, new_peak)
    if scale is None:
        return None
    second_body = [rename_variable(s, two.target.value, one.target.value) for s in two.body.body]
    total_renamed = second_body[list(two.body.body).index(total)]
    known = {source.module.code_for_node(s).strip() for s in one.body.body}
    extra = [
        s
        for s in second_body
        if s is not total_renamed and source.module.code_for_node(s).strip() not in known
    ]
    body: list[cst.CSTNode] = []
    for statement in one.body.body:
        if statement is not maximum:
            body.append(statement)
            continue
        body.extend(extra)
        body.append(_assign_to(maximum, new_peak))
        body.append(_corrected(total_renamed, sums, peak, new_peak, scale))
        body.append(cst.parse_statement(f"{peak} = {new_peak}"))
    comment = cst.EmptyLine(
        comment=cst.Comment(
            f"# One pass: when the maximum grows, what {sums} holds is scaled down to it."
        )
    )
    merged = one.with_changes(
        body=one.body.with_changes(body=_named_loads(source, body)),
        leading_lines=[*one.leading_lines, comment],
    )
    statements_new = [*owner.body[:position_one], *between, merged, *owner.body[position_two + 1 :]]
    return source.replace([(owner, owner.with_changes(body=statements_new))])


def _update(body: object, call: str) -> cst.BaseStatement | None:
    """The statement of a loop body that updates a carried value with `tl.max` or `tl.sum`."""
    found = [
        s
        for s in body  # type: ignore[attr-defined]
        if target_name(s) is not None
        and m.findall(s, m.Call(func=m.Attribute(attr=m.Name(call))))
        and (isinstance(s.body[0], cst.AugAssign) or target_name(s) in names_read(s.body[0].value))
    ]
    return found[0] if len(found) == 1 else None


def _scale(total: cst.BaseStatement, peak: str, new_peak: str) -> str | None:
    """The factor `exp(peak - new_peak)`, with the same exponential as the sum uses."""
    for node in m.findall(total, m.Call()):
        assert isinstance(node, cst.Call)
        if not node.args or not isinstance(node.args[0].value, cst.BinaryOperation):
            continue
        difference = node.args[0].value
        if isinstance(difference.operator, cst.Subtract) and m.matches(
            difference.right, m.Name(peak)
        ):
            return f"{cst.Module([]).code_for_node(node.func)}({peak} - {new_peak})"
    return None


def _assign_to(statement: cst.BaseStatement, name: str) -> cst.BaseStatement:
    assert isinstance(statement, cst.SimpleStatementLine)
    inner = statement.body[0]
    if isinstance(inner, cst.Assign):
        new = inner.with_changes(targets=[cst.AssignTarget(cst.Name(name))])
        return statement.with_changes(body=[new])
    raise AssertionError("a maximum is not updated in place")


def _corrected(
    total: cst.CSTNode, sums: str, peak: str, new_peak: str, scale: str
) -> cst.BaseStatement:
    """`sums = sums * scale + …` from `sums += …` or `sums = sums + …`."""
    assert isinstance(total, cst.SimpleStatementLine)
    inner = total.body[0]
    renamed = rename_variable(inner, peak, new_peak)
    product = cst.parse_expression(f"{sums} * {scale}")
    if isinstance(renamed, cst.AugAssign):
        value: cst.BaseExpression = cst.BinaryOperation(product, cst.Add(), renamed.value)
    else:
        assert isinstance(renamed, cst.Assign)
        replaced = substitute(
            renamed.value, lambda n: product if m.matches(n, m.Name(sums)) else None
        )
        assert isinstance(replaced, cst.BaseExpression)
        value = replaced
    assign = cst.Assign([cst.AssignTarget(cst.Name(sums))], value)
    return total.with_changes(body=[assign])


def _named_loads(source: Source, body: list[cst.CSTNode]) -> list[cst.CSTNode]:
    """Bind a load that the merged body has twice to a name."""
    from kopt.agent.playbook.row_in_one_block import _name_loads

    return list(_name_loads(source, body))  # type: ignore[arg-type]
