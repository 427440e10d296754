"""Collapse the loops over a row into one block that stays in registers."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from kopt.agent.playbook.base import CallEvidence, KernelEvidence, Proposal
from kopt.agent.playbook.loops import (
    RowLoop,
    argument_value,
    is_masked,
    located,
    reread_sentence,
    row_loops,
    siblings,
)
from kopt.agent.playbook.source import (
    Source,
    names_read,
    parsed,
    set_arguments,
    substitute,
    target_name,
)
from kopt.tools.models import Effect

_WHY = "# The row is one block: it is read once and stays in registers."
MOST_PER_THREAD = 64
"""Elements of the row that one thread may hold in registers."""


_WITH_COMMENTS = (cst.SimpleStatementLine, cst.BaseCompoundStatement)


class RowInOneBlock:
    """Sibling loops over equal pointers whose row fits in the registers of one CTA."""

    name = "row_in_one_block"

    def propose(self, call: CallEvidence) -> list[Proposal]:
        """One proposal for each group of loops and useful number of warps."""
        found = []
        for kernel in call.ranked:
            for group in siblings(row_loops(kernel)):
                if all(is_masked(kernel, loop) for loop in group):
                    found += self._group(call, kernel, group)
        return found

    def _group(
        self, call: CallEvidence, kernel: KernelEvidence, group: list[RowLoop]
    ) -> list[Proposal]:
        length = argument_value(kernel, group[0].length)
        if length is None or length <= group[0].block_value:
            return []
        block = 1 << (length - 1).bit_length()
        traffic = kernel.launch.traffic
        found = []
        for warps in (4, 8, 16, 32):
            per_thread = block / (32 * warps)
            if per_thread > MOST_PER_THREAD or (per_thread < 4 and warps > 4):
                continue
            text = _rewritten(call, kernel, group, warps)
            if text is None:
                continue
            needed = traffic.compulsory_read_bytes
            found.append(
                Proposal(
                    technique=self.name,
                    source=text,
                    rationale=(
                        f"a row of {length:,} elements fits in one block of {block:,}: with"
                        f" {warps} warps each thread keeps {per_thread:.0f} elements in registers,"
                        " and the row is read once"
                    ),
                    evidence=(reread_sentence(call, kernel, group),),
                    predicted=(
                        Effect(
                            metric="dram_bytes",
                            before=float(traffic.dram_read_bytes + traffic.dram_write_bytes),
                            after=float(needed + traffic.dram_write_bytes),
                            direction="down",
                            sentence="every element is read from DRAM once",
                        ),
                    ),
                    conditions=(
                        f"rows of at most {32 * 32 * MOST_PER_THREAD:,} elements; longer rows spill"
                    ),
                )
            )
        # Middling numbers of warps first: few leave latency exposed, many make barriers dear.
        found.sort(key=lambda p: abs(_warps(p) - max(4, block / 32 / 16)))
        return found[:3]


def _warps(proposal: Proposal) -> float:
    return float(proposal.rationale.split(" with ")[1].split(" ")[0])


def _rewritten(
    call: CallEvidence, kernel: KernelEvidence, group: list[RowLoop], warps: int
) -> str | None:
    for source, fors in located(call, kernel, group):
        text = _in(source, fors, kernel, group[0], warps)
        if text is not None:
            return text
    return None


def _in(
    source: Source, fors: list[cst.For], kernel: KernelEvidence, row: RowLoop, warps: int
) -> str | None:
    sites = source.sites(kernel.kernel.name)
    function = source.functions().get(kernel.kernel.name)
    if len(sites) != 1 or function is None:
        return None
    site = sites[0]
    bound = site.arguments.get(row.length)
    if bound is None or row.block not in site.arguments:
        return None
    owner = source.parent(fors[0])
    if not isinstance(owner, cst.IndentedBlock):
        return None
    body = _straight(source, owner, fors)
    if body is None:
        return None
    length = source.code(bound.value)
    size = (
        f"triton.next_power_of_2({length})"
        if source.imports("triton")
        else f"1 << ({length} - 1).bit_length()"
    )
    names = [p.name.value for p in function.params.params]
    new_call = set_arguments(site.call, {row.block: size, "num_warps": str(warps)}, names)
    return source.replace([(owner, owner.with_changes(body=body)), (site.call, new_call)])


def _straight(
    source: Source, owner: cst.IndentedBlock, fors: list[cst.For]
) -> list[cst.BaseStatement] | None:
    """The owner's statements with each loop replaced by its body at start 0, nothing twice."""
    chosen = {id(node) for node in fors}
    flat: list[cst.BaseStatement] = []
    for statement in owner.body:
        if id(statement) not in chosen:
            flat.append(statement)
            continue
        assert isinstance(statement, cst.For)
        assert isinstance(statement.target, cst.Name)
        assert isinstance(statement.body, cst.IndentedBlock)
        inner = [_at_zero(s, statement.target.value) for s in statement.body.body]
        if any(m.findall(s, m.Break() | m.Continue()) for s in inner):
            return None
        if inner:
            head = inner[0]
            own = head.leading_lines if isinstance(head, _WITH_COMMENTS) else ()
            why = [cst.EmptyLine(comment=cst.Comment(_WHY))] if statement is fors[0] else []
            inner[0] = head.with_changes(leading_lines=[*statement.leading_lines, *own, *why])
        flat.extend(inner)
    return _once(source, flat)


def _at_zero(statement: cst.BaseStatement, variable: str) -> cst.BaseStatement:
    """The statement of the only iteration: the loop variable is 0."""

    def test(node: cst.BaseExpression) -> cst.BaseExpression | None:
        if isinstance(node, cst.Name) and node.value == variable:
            return cst.Integer("0")
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
            if m.matches(node.left, m.Integer("0")):
                return node.right
            if m.matches(node.right, m.Integer("0")):
                return node.left
        return None

    result = substitute(statement, test)
    assert isinstance(result, cst.BaseStatement)
    return result


def _once(source: Source, flat: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
    """Without assignments that repeat an earlier one, and with repeated loads named once."""
    flat = _name_loads(source, _same_masks(source, flat))
    kept: list[cst.BaseStatement] = []
    known: dict[str, tuple[str, set[str]]] = {}
    for statement in flat:
        name = target_name(statement)
        pure = (
            isinstance(statement, cst.SimpleStatementLine)
            and isinstance(statement.body[0], cst.Assign)
            and name is not None
        )
        if pure:
            assert isinstance(statement, cst.SimpleStatementLine)
            assign = statement.body[0]
            assert isinstance(assign, cst.Assign)
            assert name is not None
            text = source.module.code_for_node(assign.value)
            if known.get(name, ("", set()))[0] == text:
                continue
            reads = names_read(assign.value)
            known = {k: v for k, v in known.items() if k != name and name not in v[1]}
            if name not in reads:
                known[name] = (text, reads)
        else:
            changed = _assigned(statement)
            known = {k: v for k, v in known.items() if k not in changed and not (v[1] & changed)}
        kept.append(statement)
    return kept


def _same_masks(source: Source, flat: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
    """With a mask that some loops name and others write out under its name everywhere."""
    masks: dict[str, tuple[cst.BaseStatement, str]] = {}
    for statement in flat:
        name = target_name(statement)
        if name is None or not isinstance(statement, cst.SimpleStatementLine):
            continue
        small = statement.body[0]
        if isinstance(small, cst.Assign) and isinstance(small.value, cst.Comparison):
            masks.setdefault(name, (statement, source.module.code_for_node(small.value)))
    for name, (definition, text) in masks.items():
        others = [s for s in flat if name in _assigned(s)]
        reads = names_read(parsed(text))
        sets = [i for i, s in enumerate(flat) if _assigned(s) & reads]
        same = all(_repeats(source, flat, s) for s in others)
        # Every name in the mask must have its only value where the mask moves to.
        if not same or any(not _repeats(source, flat, flat[i]) for i in sets):
            continue
        place = next(
            (
                i
                for i, s in enumerate(flat)
                if any(source.module.code_for_node(c) == text for c in m.findall(s, m.Comparison()))
            ),
            None,
        )
        if place is None or (sets and min(sets) > place):
            continue

        def test(
            node: cst.BaseExpression, text: str = text, name: str = name
        ) -> cst.BaseExpression | None:
            alike = isinstance(node, cst.Comparison) and source.module.code_for_node(node) == text
            return cst.Name(name) if alike else None

        new: list[cst.BaseStatement] = []
        for position, statement in enumerate(flat):
            if position == place:
                new.append(definition.with_changes(leading_lines=()))
            if statement not in others:
                changed = substitute(statement, test)
                assert isinstance(changed, cst.BaseStatement)
                new.append(changed)
        flat = new
    return flat


def _assigned(statement: cst.BaseStatement) -> set[str]:
    found = set()
    for node in m.findall(statement, m.Assign() | m.AugAssign() | m.AnnAssign()):
        name = target_name(node)  # type: ignore[arg-type]
        if name:
            found.add(name)
    return found


def _name_loads(source: Source, flat: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
    """Give a load that is written inside larger expressions several times a name of its own."""
    is_load = m.Call(func=m.Attribute(attr=m.Name("load")))
    texts: dict[str, list[int]] = {}
    for position, statement in enumerate(flat):
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        for call in m.findall(statement, is_load):
            texts.setdefault(source.module.code_for_node(call), []).append(position)
    used = {n for s in flat for n in names_read(s)} | names_read(source.module)
    for text, places in texts.items():
        if len(places) < 2 or _names_of_whole(source, flat, text):
            continue
        reads = names_read(parsed(text))
        if any(
            _assigned(s) & reads and not _repeats(source, flat, s)
            for s in flat[places[0] + 1 : places[-1] + 1]
        ):
            continue
        name = next(
            n for n in ["row", "values", *(f"row_{i}" for i in range(2, 99))] if n not in used
        )
        used.add(name)

        def test(
            node: cst.BaseExpression, text: str = text, name: str = name
        ) -> cst.BaseExpression | None:
            if isinstance(node, cst.Call) and source.module.code_for_node(node) == text:
                return cst.Name(name)
            return None

        first = places[0]
        owner = flat[first]
        assert isinstance(owner, cst.SimpleStatementLine)
        lines = owner.leading_lines
        bound = cst.SimpleStatementLine(
            [cst.Assign([cst.AssignTarget(cst.Name(name))], parsed(text))], leading_lines=lines
        )
        changed = [
            substitute(s, test) if isinstance(s, cst.SimpleStatementLine) else s for s in flat
        ]
        if isinstance(changed[first], cst.SimpleStatementLine):
            changed[first] = changed[first].with_changes(leading_lines=())
        flat = [*changed[:first], bound, *changed[first:]]  # type: ignore[list-item]
    return flat


def _repeats(source: Source, flat: list[cst.BaseStatement], statement: cst.BaseStatement) -> bool:
    """Whether an assignment gives a variable what another statement gives it too."""
    name, text = target_name(statement), source.module.code_for_node(statement).strip()
    same = [s for s in flat if target_name(s) == name]
    return all(source.module.code_for_node(s).strip() == text for s in same)


def _names_of_whole(source: Source, flat: list[cst.BaseStatement], text: str) -> bool:
    """Whether every such load is the whole value of an assignment to one and the same name."""
    names = set()
    whole = 0
    total = 0
    for statement in flat:
        total += sum(
            source.module.code_for_node(c) == text
            for c in m.findall(statement, m.Call(func=m.Attribute(attr=m.Name("load"))))
        )
        if isinstance(statement, cst.SimpleStatementLine) and isinstance(
            statement.body[0], cst.Assign
        ):
            assign = statement.body[0]
            if source.module.code_for_node(assign.value) == text:
                whole += 1
                names.add(target_name(statement))
    return whole == total and len(names) == 1
