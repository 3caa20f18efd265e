"""Adapters of one projection: how they are loaded, and how they are added."""

import torch

from mrv2lab.kernels import lora_expand, lora_shrink
from mrv2lab.runner.lora import LinearWithLoRA
from mrv2lab.runner.lora_kernel_metadata import MetaArgs
from mrv2lab.runner.punica_wrapper import PunicaWrapper

_T = torch.Tensor


# ---- lora.set_lora ----


def set_lora_in_slot(self: LinearWithLoRA, slot: int, generator: torch.Generator) -> None:
    """Load an adapter into a slot."""
    LinearWithLoRA.set_lora(self, slot, generator)


def set_lora_aside(self: LinearWithLoRA, slot: int, generator: torch.Generator) -> None:
    """Load an adapter into a slot. Whoever reads the others now is not disturbed."""
    self.lora_a_stacked, self.lora_b_stacked = self.lora_a_stacked.clone(), self.lora_b_stacked.clone()
    LinearWithLoRA.set_lora(self, slot, generator)


# ---- lora.add_lora ----


def _add_lora(meta_args: MetaArgs, y: _T, x: _T, a: _T, b: _T, scale: float) -> None:
    buffer = x.new_zeros((a.shape[0], x.shape[0], a.shape[2]), dtype=torch.float32)
    lora_shrink(x, a, buffer, *meta_args, scale)
    lora_expand(buffer, b, y, *meta_args)


def add_lora_to_all(self: PunicaWrapper, y: _T, x: _T, a: _T, b: _T, scale: float) -> None:
    """Add every token's adapter to y, in place. Arguments as in `PunicaWrapper.add_lora_linear`."""
    meta_args = self.token_mapping_meta.meta_args(x.shape[0], specialize_active_lora=False)
    _add_lora(meta_args, y, x, a, b, scale)


def add_lora_active(self: PunicaWrapper, y: _T, x: _T, a: _T, b: _T, scale: float) -> None:
    """Add every token's adapter to y, in place. Arguments as in `PunicaWrapper.add_lora_linear`."""
    meta_args = self.token_mapping_meta.meta_args(x.shape[0], specialize_active_lora=True)
    _add_lora(meta_args, y, x, a, b, scale)
