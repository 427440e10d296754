"""Kernels that mean the same, written in many ways: for what a rewrite finds to be the same too.

Hypothesis draws a style (names, order of arguments, how sums are carried, masks, range, helpers);
`row_softmax` and `row_norm` render a target in it.
"""

from __future__ import annotations

import keyword
from dataclasses import dataclass

from hypothesis import strategies as st

_RESERVED = {"tl", "triton", "torch", "run", "make_inputs", "inputs", "out", "n_rows", "n_cols"}


@dataclass(frozen=True)
class Style:
    """How a kernel is written."""

    names: tuple[str, ...]
    """Twelve different identifiers."""
    dtype: str
    block: int
    tile_sum: bool
    """Whether sums are carried as tiles and added up after the loop."""
    named_mask: bool
    language_range: bool
    """`tl.range` in place of `range`."""
    augmented: bool
    """`a += b` in place of `a = a + b`."""
    helper: bool
    """Whether loading a block is a function of its own."""
    output_first: bool
    """Order of the kernel's arguments."""
    extra_store: bool
    """Whether the kernel also stores something that has nothing to do with it."""


_identifiers = st.from_regex(r"[a-z][a-z_]{0,6}", fullmatch=True).filter(
    lambda name: not keyword.iskeyword(name) and name not in _RESERVED and not name.endswith("_")
)

styles = st.builds(
    Style,
    names=st.lists(_identifiers, min_size=12, max_size=12, unique=True).map(tuple),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    block=st.sampled_from([128, 256, 1024]),
    tile_sum=st.booleans(),
    named_mask=st.booleans(),
    language_range=st.booleans(),
    augmented=st.booleans(),
    helper=st.booleans(),
    output_first=st.booleans(),
    extra_store=st.booleans(),
)


class Writer:
    """Renders the parts that all row kernels share."""

    def __init__(self, style: Style) -> None:
        self.style = style
        (self.x, self.y, self.z, self.n, self.block, self.row, self.at, self.cols, self.value,
         self.first, self.second, self.kernel) = style.names  # fmt: skip

    def loop(self) -> str:
        """The head of a loop over the row, and the columns of a block."""
        range_ = "tl.range" if self.style.language_range else "range"
        text = f"    for {self.at} in {range_}(0, {self.n}, {self.block}):\n"
        return text + f"        {self.cols} = {self.at} + tl.arange(0, {self.block})\n"

    def load(self, other: str) -> str:
        """One block of the row as fp32."""
        mask = f"{self.cols} < {self.n}"
        if self.style.helper:
            call = f"load_block_({self.x}, {self.cols}, {self.n}, {other})"
            return f"        {self.value} = {call}\n"
        text = ""
        if self.style.named_mask:
            text, mask = f"        inside_ = {mask}\n", "inside_"
        load = f"tl.load({self.x} + {self.cols}, mask={mask}, other={other})"
        return text + f"        {self.value} = {load}.to(tl.float32)\n"

    def add(self, variable: str, value: str) -> str:
        """Adding a block's values to a sum."""
        if not self.style.tile_sum:
            value = f"tl.sum({value}, axis=0)"
        if self.style.augmented:
            return f"        {variable} += {value}\n"
        return f"        {variable} = {variable} + {value}\n"

    def zero(self, variable: str) -> str:
        """What a sum starts from."""
        start = f"tl.zeros([{self.block}], dtype=tl.float32)" if self.style.tile_sum else "0.0"
        return f"    {variable} = {start}\n"

    def total(self, variable: str) -> str:
        """The sum over the row."""
        return f"tl.sum({variable}, axis=0)" if self.style.tile_sum else variable

    def target(self, body: str) -> str:
        """The file around the kernel's loops."""
        pointers = [self.y, self.x] if self.style.output_first else [self.x, self.y]
        passed = ["out", "inputs"] if self.style.output_first else ["inputs", "out"]
        extra = (
            f"    tl.store({self.z} + {self.row}, {self.row})\n" if self.style.extra_store else ""
        )
        helper = (
            "@triton.jit\ndef load_block_(start_, at_, end_, other_: tl.constexpr):\n"
            "    return tl.load(start_ + at_, mask=at_ < end_, other=other_).to(tl.float32)\n\n\n"
            if self.style.helper
            else ""
        )
        return (
            "import torch\nimport triton\nimport triton.language as tl\n\n\n"
            + helper
            + "@triton.jit\n"
            + f"def {self.kernel}({', '.join(pointers)}, {self.z}, {self.n},"
            + f" {self.block}: tl.constexpr):\n"
            + f"    {self.row} = tl.program_id(0)\n"
            + f"    {self.x} += {self.row} * {self.n}\n"
            + f"    {self.y} += {self.row} * {self.n}\n"
            + extra
            + body
            + "\n\ndef run(inputs):\n"
            + "    out = torch.empty_like(inputs)\n"
            + "    ids = torch.zeros(inputs.shape[0], dtype=torch.int32, device=inputs.device)\n"
            + f"    {self.kernel}[(inputs.shape[0],)]({', '.join(passed)}, ids, inputs.shape[1],"
            + f" {self.block}={self.style.block})\n"
            + "    return out\n\n\n"
            + "def make_inputs(n_rows=3, n_cols=2500):\n"
            + '    values = torch.randn(n_rows, n_cols, device="cuda")\n'
            + f"    return (values.to(torch.{self.style.dtype}),)\n"
        )


def row_softmax(style: Style) -> str:
    """Maximum, sum of exponentials, division: three passes."""
    w = Writer(style)
    low = '-float("inf")' if not style.helper else "-1e30"
    w_total = Writer(_scalar_sums(style))
    body = f'    {w.first} = -float("inf")\n'
    body += w.loop() + w.load(low)
    body += f"        {w.first} = tl.maximum({w.first}, tl.max({w.value}, axis=0))\n"
    body += f"    {w.second} = 0.0\n"
    body += w.loop() + w.load(low)
    body += w_total.add(w.second, f"tl.exp({w.value} - {w.first})")
    body += w.loop() + w.load(low)
    body += f"        result_ = tl.exp({w.value} - {w.first}) / {w.second}\n"
    body += f"        tl.store({w.y} + {w.cols}, result_, mask={w.cols} < {w.n})\n"
    return w.target(body)


def _scalar_sums(style: Style) -> Style:
    from dataclasses import replace

    return replace(style, tile_sum=False)


def row_norm(style: Style, *, masked_deviation: bool = True, mean: str = "") -> str:
    """Mean, variance, division: three passes.

    Without `masked_deviation` columns past the end add the square of the mean, which no merged
    pass can repeat; `mean` replaces the mean that deviations are taken from.
    """
    w = Writer(style)
    body = w.zero(w.first) + w.loop() + w.load("0.0") + w.add(w.first, w.value)
    body += f"    mean_ = {mean or w.total(w.first) + ' / ' + w.n}\n"
    body += w.zero(w.second) + w.loop() + w.load("0.0")
    deviation = f"{w.value} - mean_"
    if masked_deviation:
        deviation = f"tl.where({w.cols} < {w.n}, {deviation}, 0.0)"
    body += f"        deviation_ = {deviation}\n"
    body += w.add(w.second, "deviation_ * deviation_")
    body += f"    scale_ = 1 / tl.sqrt({w.total(w.second)} / {w.n} + 1e-5)\n"
    body += w.loop() + w.load("0.0")
    body += f"        result_ = ({w.value} - mean_) * scale_\n"
    body += f"        tl.store({w.y} + {w.cols}, result_, mask={w.cols} < {w.n})\n"
    return w.target(body)
