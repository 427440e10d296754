"""How wrong the device rates can be, as a fixed set of perturbed devices.

A rate that is off is off by the same factor for all kernels, so a comparison perturbs the rates
jointly for both arms and its interval is the range of the ratio.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.gpu.spec import DeviceSpec

Draws = NDArray[np.float64]
"""One value for each perturbed device; the first is the device as specified."""

OVERLAP = 5.0
"""Exponent of the p-norm by which bounds combine: infinity is perfect overlap, 1 is none. A guess;
`OVERLAP_RANGE` is perturbed with the rates."""
OVERLAP_RANGE = (3.0, 10.0)
DRAWS = 64


@dataclass(frozen=True)
class Rates:
    """Factors on device rates, one for each draw; above 1 is a faster device."""

    dram: Draws
    l2: Draws
    issue: Draws
    latency: Draws
    launch: Draws
    operator: Draws
    overlap: Draws
    """The p-norm's exponent itself."""


def perturbations(spec: DeviceSpec) -> Rates:
    """The device as specified, each rate at its two ends alone, and `DRAWS` points of the box.

    The points are the additive recurrence of the generalised golden ratio (M. Roberts, 2018): low
    discrepancy, deterministic, and the same for every call.
    """
    width = np.array(
        [spec.dram_uncertainty, spec.l2_uncertainty, spec.issue_uncertainty,
         spec.latency_uncertainty, spec.launch_uncertainty, spec.operator_uncertainty, 1.0]
    )  # fmt: skip
    size = len(width)
    phi = 2.0
    for _ in range(40):
        phi = (1 + phi) ** (1 / (size + 1))
    steps = phi ** -np.arange(1, size + 1)
    inside = 2 * ((0.5 + np.outer(np.arange(1, DRAWS + 1), steps)) % 1) - 1
    unit = np.concatenate([np.zeros((1, size)), np.eye(size), -np.eye(size), inside])
    factors = 1 + unit * width
    low, high = np.log(OVERLAP_RANGE[0] / OVERLAP), np.log(OVERLAP_RANGE[1] / OVERLAP)
    last = unit[:, -1]
    overlap = OVERLAP * np.exp(np.where(last < 0, -last * low, last * high))
    dram, l2, issue, latency, launch, operator = factors.T[:-1]
    return Rates(dram, l2, issue, latency, launch, operator, overlap)
