"""Launch grids in host code: what they are, and changing them."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m

from kopt.agent.playbook.signature import call_with
from kopt.agent.playbook.source import Site, Source, parsed, substitute


def grid(source: Source, site: Site) -> list[str] | None:
    """The components of a launch's grid as host expressions; None where that cannot be told."""
    value = _grid_value(source, site)
    if value is None:
        return None
    if isinstance(value, cst.Lambda):
        return _of_lambda(source, site, value)
    if isinstance(value, cst.Tuple | cst.List):
        return [source.code(e.value) for e in value.elements]
    return None


def _grid_value(source: Source, site: Site) -> cst.BaseExpression | None:
    """The tuple or function that a grid is, behind a variable that is assigned once."""
    subscript = site.call.func
    if not isinstance(subscript, cst.Subscript):
        return None
    indices = [e.slice.value for e in subscript.slice if isinstance(e.slice, cst.Index)]
    if len(indices) != 1 or isinstance(subscript.slice[0].comma, cst.Comma):
        return cst.Tuple([cst.Element(i) for i in indices]) if indices else None
    value = indices[0]
    if isinstance(value, cst.Name):
        assigned = source.assigned(value.value, site.function)
        return assigned[0] if len(assigned) == 1 else None
    return value


def _of_lambda(source: Source, site: Site, value: cst.Lambda) -> list[str] | None:
    if len(value.params.params) != 1 or not isinstance(value.body, cst.Tuple):
        return None
    meta = value.params.params[0].name.value

    def test(node: cst.BaseExpression) -> cst.BaseExpression | None:
        if not m.matches(node, m.Subscript(value=m.Name(meta))):
            return None
        assert isinstance(node, cst.Subscript)
        index = node.slice[0].slice
        if isinstance(index, cst.Index) and isinstance(index.value, cst.SimpleString):
            arg = site.arguments.get(str(index.value.evaluated_value))
            return arg.value if arg is not None else None
        return None

    found = []
    for element in value.body.elements:
        changed = substitute(element.value, test)
        if m.findall(changed, m.Name(meta)):
            return None
        found.append(source.code(changed))
    return found


def grid_changes(
    source: Source, site: Site, components: list[str]
) -> list[tuple[cst.CSTNode, cst.CSTNode]]:
    """The edit that gives a launch another grid: where the grid is written, or in the launch if
    other launches share the variable."""
    text = f"({', '.join(components)}{',' if len(components) == 1 else ''})"
    new = parsed(text)
    subscript = site.call.func
    assert isinstance(subscript, cst.Subscript)
    index = subscript.slice[0].slice
    bare = isinstance(subscript.slice[0].comma, cst.Comma)
    if len(subscript.slice) == 1 and isinstance(index, cst.Index) and not bare:
        value = index.value
        if isinstance(value, cst.Name):
            assigned = source.assigned(value.value, site.function)
            owner = source.functions().get(site.function)
            uses = m.findall(owner, m.Name(value.value)) if owner is not None else ()
            if len(assigned) == 1 and len(uses) == 2:
                return [(assigned[0], new)]
        return [(value, new)]
    element = subscript.slice[0].with_changes(slice=cst.Index(new), comma=cst.MaybeSentinel.DEFAULT)
    return [(subscript, subscript.with_changes(slice=[element]))]


def relaunched(
    source: Source, site: Site, components: list[str], args: Sequence[cst.Arg] | None = None
) -> list[tuple[cst.CSTNode, cst.CSTNode]]:
    """The edits that give a launch another grid and, where given, other arguments."""
    changes = grid_changes(source, site, components)
    call = site.call
    if args is not None:
        call = call_with(call, args, source.module.code, source.module.default_indent)
    within = [(old, new) for old, new in changes if _contains(site.call, old)]
    for old, new in within:
        changed = call.deep_replace(old, new)
        assert isinstance(changed, cst.Call)
        call = changed
    outside = [(old, new) for old, new in changes if not _contains(site.call, old)]
    return outside if call is site.call else [*outside, (site.call, call)]


def _contains(root: cst.CSTNode, node: cst.CSTNode) -> bool:
    return root is node or any(_contains(child, node) for child in root.children)


def on_host(source: Source, site: Site, text: str) -> str | None:
    """A kernel expression over parameters as the host expression over what was passed."""
    node = parsed(text)
    missing: list[str] = []

    def test(inner: cst.BaseExpression) -> cst.BaseExpression | None:
        if not isinstance(inner, cst.Name):
            return None
        arg = site.arguments.get(inner.value)
        if arg is None:
            missing.append(inner.value)
            return None
        simple = isinstance(
            arg.value, cst.Name | cst.Attribute | cst.Call | cst.Subscript | cst.Integer
        )
        if simple or inner is node:
            return arg.value
        return arg.value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])

    if isinstance(node, cst.Name):
        changed = test(node)
        return source.code(changed) if changed is not None else None
    changed_node = substitute(node, test)
    return None if missing else source.code(changed_node)


def ceiling(source: Source, value: str, by: str) -> str:
    """Host code for the number of blocks."""
    return f"triton.cdiv({value}, {by})" if source.imports("triton") else f"-(-({value}) // {by})"
