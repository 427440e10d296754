"""Parameters of kernels and arguments of launches: adding, removing, and breaking long lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import libcst as cst

WIDEST = 88
"""Lines are broken beyond this, or beyond the file's own longest line of code up to 120."""


def width(text: str) -> int:
    """How long a line of this file may be."""
    longest = max((len(line) for line in text.splitlines()), default=0)
    return min(120, max(WIDEST, longest))


def keyword(name: str, value: str | cst.BaseExpression) -> cst.Arg:
    """`name=value`."""
    return cst.Arg(
        cst.parse_expression(value) if isinstance(value, str) else value,
        keyword=cst.Name(name),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )


def constexpr(name: str, like: Sequence[cst.Param], default: str | None = None) -> cst.Param:
    """A constexpr parameter, annotated as the others are."""
    annotations = [p.annotation for p in like if p.annotation is not None]
    annotation = (
        annotations[-1] if annotations else cst.Annotation(cst.parse_expression("tl.constexpr"))
    )
    if default is None:
        return cst.Param(cst.Name(name), annotation=annotation)
    return cst.Param(cst.Name(name), annotation=annotation, default=cst.parse_expression(default))


_ONE_LINE = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def _broken(indent: str) -> cst.ParenthesizedWhitespace:
    return cst.ParenthesizedWhitespace(
        first_line=cst.TrailingWhitespace(), indent=True, last_line=cst.SimpleWhitespace(indent)
    )


def function_with(
    function: cst.FunctionDef, params: Sequence[cst.Param], text: str
) -> cst.FunctionDef:
    """A function with these parameters: in the lines they are in, or in one line if they fit."""
    old = list(function.params.params)
    if isinstance(function.whitespace_before_params, cst.ParenthesizedWhitespace) and old:
        return function.with_changes(
            params=function.params.with_changes(params=_as_before(old, list(params)))
        )
    plain = [_plain(p) for p in params]
    one = [p.with_changes(comma=_ONE_LINE) for p in plain[:-1]] + plain[-1:]
    changed = function.with_changes(
        params=function.params.with_changes(params=one),
        whitespace_before_params=cst.SimpleWhitespace(""),
    )
    head = changed.with_changes(
        body=cst.SimpleStatementSuite([cst.Pass()]), decorators=(), leading_lines=()
    )
    if len(cst.Module([head]).code.rstrip()) - len(" pass") <= width(text):
        return changed
    comma = cst.Comma(whitespace_after=_broken("    "))
    last = cst.Comma(whitespace_after=_broken(""))
    joined = ", ".join(cst.Module([]).code_for_node(p) for p in plain)
    if len(joined) + 4 <= width(text):
        # All parameters on one line of their own.
        end = plain[-1].with_changes(whitespace_after_param=_broken(""))
        return changed.with_changes(
            params=function.params.with_changes(params=[*one[:-1], end]),
            whitespace_before_params=_broken("    "),
        )
    many = [p.with_changes(comma=comma) for p in plain[:-1]]
    many.append(plain[-1].with_changes(comma=last))
    return changed.with_changes(
        params=function.params.with_changes(params=many), whitespace_before_params=_broken("    ")
    )


Item = TypeVar("Item", cst.Param, cst.Arg)


def _as_before(old: list[Item], new: list[Item]) -> list[Item]:
    """A broken list with items added or removed, broken where it was."""
    inner = old[-2].comma if len(old) > 1 else cst.Comma(whitespace_after=_broken("    "))
    final = old[-1]
    kept = []
    for item in new:
        added = all(item is not o for o in old)
        comma = inner if added or item is final else item.comma
        kept.append(_bare(item).with_changes(comma=comma))
    after = (
        {"whitespace_after_param": final.whitespace_after_param}
        if isinstance(final, cst.Param)
        else {"whitespace_after_arg": final.whitespace_after_arg}
    )
    kept[-1] = kept[-1].with_changes(comma=final.comma, **after)
    return kept


def _bare(item: Item) -> Item:
    if isinstance(item, cst.Param):
        changed = item.with_changes(whitespace_after_param=cst.SimpleWhitespace(""))
        return changed.with_changes(star="") if not isinstance(item.star, str) else changed
    return item.with_changes(whitespace_after_arg=cst.SimpleWhitespace(""))


def _plain(param: cst.Param) -> cst.Param:
    return _bare(param).with_changes(comma=cst.MaybeSentinel.DEFAULT)


def call_with(call: cst.Call, args: Sequence[cst.Arg], text: str, indent: str) -> cst.Call:
    """A call with these arguments: in the lines they are in, or in one line if they fit.

    `indent` is that of the statement.
    """
    old = list(call.args)
    broken = isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace)
    if broken and any(a is b for a in args for b in old):
        return call.with_changes(args=_as_before(old, list(args)))
    plain = [
        a.with_changes(
            comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=cst.SimpleWhitespace("")
        )
        for a in args
    ]
    one = [a.with_changes(comma=_ONE_LINE) for a in plain[:-1]] + plain[-1:]
    changed = call.with_changes(args=one, whitespace_before_args=cst.SimpleWhitespace(""))
    line = cst.Module([]).code_for_node(changed)
    if "\n" not in line and len(indent) + len(line) <= width(text):
        return changed
    inner = cst.ParenthesizedWhitespace(
        first_line=cst.TrailingWhitespace(), indent=True, last_line=cst.SimpleWhitespace("    ")
    )
    outer = cst.ParenthesizedWhitespace(
        first_line=cst.TrailingWhitespace(), indent=True, last_line=cst.SimpleWhitespace("")
    )
    joined = ", ".join(cst.Module([]).code_for_node(a) for a in plain)
    if len(indent) + 4 + len(joined) <= width(text) and "\n" not in joined:
        # All arguments on one line of their own.
        many = [a.with_changes(comma=_ONE_LINE) for a in plain[:-1]]
        many.append(plain[-1].with_changes(whitespace_after_arg=outer))
        return changed.with_changes(args=many, whitespace_before_args=inner)
    many = [a.with_changes(comma=cst.Comma(whitespace_after=inner)) for a in plain[:-1]]
    many.append(plain[-1].with_changes(comma=cst.Comma(whitespace_after=outer)))
    return changed.with_changes(args=many, whitespace_before_args=inner)


def parameters(function: cst.FunctionDef) -> list[cst.Param]:
    """All parameters in order."""
    return [*function.params.params, *function.params.kwonly_params]


def with_number(
    params: Sequence[cst.Param], args: Sequence[cst.Arg], name: str, value: str
) -> tuple[list[cst.Param], list[cst.Arg]]:
    """A kernel's parameters and a launch's arguments with one more number before the constexprs."""
    place = next(
        (i for i, p in enumerate(params) if p.annotation is not None or p.default is not None),
        len(params),
    )
    expression = cst.parse_expression(value)
    positional = sum(a.keyword is None for a in args)
    if place <= positional:
        new = [*args[:place], cst.Arg(expression), *args[place:]]
    else:
        new = [*args, keyword(name, expression)]
    return [*params[:place], cst.Param(cst.Name(name)), *params[place:]], new
