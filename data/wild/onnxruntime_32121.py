"""Decoding by replay stayed right until a prefill ran in between; then `Concat` joined other tensors. It
writes the addresses of its inputs into a pinned host buffer, copies that to the device and hands the buffer
back at once. In a graph the copy reads the host address anew at each replay, and by then the prefill has
taken the buffer and filled in its own addresses. The repair keeps buffers that a capture has used.
"""

from types import SimpleNamespace

import torch
import triton
import triton.language as tl

from mrv2lab.graphs import host

PROJECT = "ONNX Runtime"
LINK = "https://github.com/microsoft/onnxruntime/pull/32121"
MECHANISM = "pointer-table"
CAUSE = "staging"
LINE = "table.copy_(staging, non_blocking=True)"
EXECUTORS = ("emulated", "cuda")

INPUTS, COLUMNS = 2, 4


@triton.jit
def concat_kernel(table, arena, out, COLUMNS: tl.constexpr):  # the inputs lie somewhere in the arena
    source = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    columns = tl.arange(0, COLUMNS)
    tl.store(out + tl.program_id(0) * COLUMNS + columns, tl.load(source + columns))


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    arena = torch.arange(2.0 * INPUTS * COLUMNS, device=device).view(2, INPUTS, COLUMNS)
    decoded, prefilled = arena
    free: list[torch.Tensor] = []  # pinned buffers, to be taken again
    retained: list[torch.Tensor] = []

    def concat(inputs: torch.Tensor) -> torch.Tensor:
        staging = free.pop() if free else host(torch.zeros(INPUTS, dtype=torch.int64), pinned=True)
        for i, tensor in enumerate(inputs):
            staging[i] = tensor.data_ptr()
        table = torch.empty(INPUTS, dtype=torch.int64, device=device)
        table.copy_(staging, non_blocking=True)
        out = torch.empty(INPUTS, COLUMNS, device=device)
        concat_kernel[(INPUTS,)](table, arena, out, COLUMNS=COLUMNS)
        is_kept = fixed and torch.cuda.is_current_stream_capturing()
        (retained if is_kept else free).append(staging)
        return out

    def vary() -> None:
        if device.type == "cuda":  # outside of graphs a buffer is not taken again before its copy ran
            torch.cuda.synchronize()
        concat(prefilled)
        if device.type == "cuda":
            torch.cuda.synchronize()
        decoded.add_(1)

    return SimpleNamespace(step=lambda: concat(decoded), vary=vary)
