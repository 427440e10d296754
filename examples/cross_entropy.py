"""Cross entropy over a large vocabulary: the logits are read twice."""

import torch
import triton
import triton.language as tl


@triton.jit
def cross_entropy_kernel(logits_ptr, target_ptr, loss_ptr, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    logits_ptr += row * vocab

    largest = -float("inf")
    for start in range(0, vocab, BLOCK):
        idx = start + tl.arange(0, BLOCK)
        logits = tl.load(logits_ptr + idx, mask=idx < vocab, other=-float("inf"))
        largest = tl.maximum(largest, tl.max(logits, axis=0))

    denom = 0.0
    for start in range(0, vocab, BLOCK):
        idx = start + tl.arange(0, BLOCK)
        logits = tl.load(logits_ptr + idx, mask=idx < vocab, other=-float("inf"))
        denom += tl.sum(tl.exp(logits - largest), axis=0)

    target = tl.load(target_ptr + row)
    picked = tl.load(logits_ptr + target)
    tl.store(loss_ptr + row, tl.log(denom) + largest - picked)


def cross_entropy(logits, target):
    n_rows, vocab = logits.shape
    loss = torch.empty(n_rows, device=logits.device, dtype=torch.float32)
    cross_entropy_kernel[(n_rows,)](logits, target, loss, vocab, BLOCK=1024, num_warps=4)
    return loss


def reference(logits, target):
    return torch.nn.functional.cross_entropy(logits, target, reduction="none")


def make_inputs(rows=512, vocab=128256):
    logits = torch.randn(rows, vocab, device="cuda")
    target = torch.randint(0, vocab, (rows,), device="cuda")
    return logits, target


WORKLOADS = {"vocabulary": {"rows": 512, "vocab": 128256}}
