"""The file with several kernels and their launches replaced by one."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from kopt.agent.playbook.fused_kernel import FusedKernel, FusedParameter
from kopt.agent.playbook.handovers import label
from kopt.agent.playbook.signature import call_with, function_with, keyword
from kopt.agent.playbook.source import Source, fresh_name, names_read
from kopt.agent.playbook.stages import launch_line

Change = tuple[
    cst.CSTNode, cst.CSTNode | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel
]


def fused_file(source: Source, kernel: FusedKernel) -> str | None:
    """The whole file; None where the launch cannot be written."""
    functions = source.functions()
    definitions = [functions[s.evidence.kernel.name] for s in kernel.chain.stages]
    name = fresh_name(_joined([d.name.value for d in definitions]), source.module)
    used = {n for s in kernel.body for n in names_read(s)}
    chosen = {n: p for n, p in kernel.parameters.items() if n in used}
    chosen = dict(sorted(chosen.items(), key=lambda item: item[1].kind))
    gone = {label(h) for h in kernel.chain.handovers if h.buffer in kernel.dropped}
    defaults = [p.node.default is not None for p in chosen.values()]
    if any(names_read(p.value) & gone for p in chosen.values()) or defaults != sorted(defaults):
        return None
    model = definitions[-1]
    assert isinstance(model.body, cst.IndentedBlock)
    fused = function_with(
        model.with_changes(name=cst.Name(name), body=model.body.with_changes(body=kernel.body)),
        [p.node for p in chosen.values()],
        source.module.code,
    )
    return source.replace(
        [*_definitions(source, definitions, fused), *_launches(source, kernel, name, chosen)]
    )


def _definitions(
    source: Source, definitions: list[cst.FunctionDef], fused: cst.FunctionDef
) -> list[Change]:
    """Put the fused kernel where the last one was; drop those that nothing launches now."""
    used = [n.value for n in m.findall(source.module, m.Name()) if isinstance(n, cst.Name)]
    launched = [d.name.value for d in definitions]
    unique = {d.name.value: d for d in definitions}
    alone = {n for n in unique if used.count(n) == 1 + launched.count(n)}
    order = [n for n in source.functions() if n in unique]
    changes: list[Change] = [(unique[n], cst.RemoveFromParent()) for n in order[:-1] if n in alone]
    last = unique[order[-1]]
    if order[-1] not in alone:
        spaced = fused.with_changes(leading_lines=[cst.EmptyLine(), cst.EmptyLine()])
        return [*changes, (last, cst.FlattenSentinel([last, spaced]))]
    model = unique[order[0]] if order[0] in alone else last
    return [*changes, (last, fused.with_changes(leading_lines=model.leading_lines))]


def _launches(
    source: Source, kernel: FusedKernel, name: str, chosen: dict[str, FusedParameter]
) -> list[Change]:
    """Launch the fused kernel where the last launch was, and nothing before."""
    changes: list[Change] = []
    for stage in kernel.chain.stages[:-1]:
        line = launch_line(source, stage.site)
        assert line is not None
        changes.append((line, cst.RemoveFromParent()))
    last = kernel.chain.stages[-1]
    call = last.site.call
    assert isinstance(call.func, cst.Subscript)
    args = []
    named = False
    for new, parameter in chosen.items():
        default = parameter.node.default
        if default is not None and source.code(parameter.value) == source.code(default):
            named = True
            continue
        named = named or parameter.by_name
        args.append(keyword(new, parameter.value) if named else cst.Arg(parameter.value))
    for extra in ("num_warps", "num_stages"):
        if extra in last.site.arguments:
            args.append(keyword(extra, last.site.arguments[extra].value))
    launched = call.with_changes(func=call.func.with_changes(value=cst.Name(name)))
    indent = source.module.default_indent * _depth(source, call)
    return [*changes, (call, call_with(launched, args, source.module.code, indent))]


def _depth(source: Source, node: cst.CSTNode) -> int:
    """How many blocks a node stands in."""
    depth, current = 0, source.parent(node)
    while current is not None:
        depth += isinstance(current, cst.IndentedBlock)
        current = source.parent(current)
    return depth


def _joined(names: list[str]) -> str:
    """A name for the fused kernel."""
    stems = list(dict.fromkeys(n.removesuffix("_kernel") for n in names))
    suffix = "_kernel" if any(n.endswith("_kernel") for n in names) else ""
    return "_".join(stems) + suffix
