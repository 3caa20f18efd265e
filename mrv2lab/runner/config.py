"""Sizes of the mini runner: one frozen object, checked once."""

from dataclasses import dataclass
from enum import Enum

import torch

from mrv2lab.errors import BadInput, choose
from mrv2lab.graphs.work import fits_a_graph


class CUDAGraphMode(Enum):
    """How a batch is run. Mirrors `vllm.config.compilation.CUDAGraphMode`. A decode gives every request
    `decode_query_len` tokens.
    """

    NONE = "none"
    PIECEWISE = "piecewise"  # graphs up to attention, attention eagerly, graphs behind it
    FULL = "full"
    FULL_DECODE_ONLY = "full decode only"  # a graph for decodes only
    FULL_AND_PIECEWISE = "full and piecewise"  # FULL for decodes, else PIECEWISE

    def decode_mode(self) -> "CUDAGraphMode":
        """How a decode is run."""
        return CUDAGraphMode.FULL if self.separate_routine() else self

    def mixed_mode(self) -> "CUDAGraphMode":
        """How any other batch is run."""
        if self is CUDAGraphMode.FULL_AND_PIECEWISE:
            return CUDAGraphMode.PIECEWISE
        return CUDAGraphMode.NONE if self is CUDAGraphMode.FULL_DECODE_ONLY else self

    def separate_routine(self) -> bool:
        """Whether the two differ."""
        return self in (CUDAGraphMode.FULL_DECODE_ONLY, CUDAGraphMode.FULL_AND_PIECEWISE)

    def has_piecewise_cudagraphs(self) -> bool:
        return self.mixed_mode() is CUDAGraphMode.PIECEWISE


MLA_BACKENDS = ("FLASHMLA", "FLASH_ATTN_MLA")
"""The first plans in its first call, the second has a plan made for every batch."""


@dataclass(frozen=True)
class RunnerConfig:
    """Everything that fixes the shapes of model, adapters, cache and graphs. BadInput: a size out of range,
    named with the range.
    """

    vocab_size: int = 128
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    intermediate_size: int = 96

    max_loras: int = 3  # adapters that fit on the device at once
    max_lora_rank: int = 8
    specialize_active_lora: bool = False  # grid follows the number of active adapters
    lora_embedding: bool = False  # adapters change the embedding too

    max_num_reqs: int = 8
    max_num_tokens: int = 64  # in one batch
    max_model_len: int = 64
    block_size: int = 8  # tokens in a KV cache block
    cudagraph_mode: CUDAGraphMode = CUDAGraphMode.FULL
    cudagraph_capture_sizes: tuple[int, ...] = (1, 2, 4, 8)
    uniform_decode: bool = False  # attention takes one query length for all requests, as TRT-LLM's decode

    attention_backend: str = "PAGED"  # or of MLA_BACKENDS: latent attention, decode by a plan, no adapters
    num_speculative_tokens: int = 0  # of a draft model that runs after the target, for each request
    verify_drafts: bool = True  # False: they are proposed and no more, so that drafts change no batch

    dtype: torch.dtype = torch.float32
    seed: int = 0

    def __post_init__(self) -> None:
        choose("attention_backend", self.attention_backend, ["PAGED", *MLA_BACKENDS])
        is_mla = self.attention_backend in MLA_BACKENDS
        for name, low, high in (
            ("num_speculative_tokens", 0, 1 if is_mla else 4),
            ("num_layers", 1, 32),
            ("max_loras", 1, 16),
            ("max_lora_rank", 1, 64),
            ("max_num_reqs", 1, 64),
            ("max_model_len", 8, 1024),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise BadInput(f"{name}={value} is out of range; possible: {low} to {high}")
        if self.num_speculative_tokens > 1 and not self.verify_drafts:
            raise BadInput(f"{self.num_speculative_tokens} drafts that nobody verifies; possible: 0, 1")
        if is_mla and self.cudagraph_mode.has_piecewise_cudagraphs():
            raise BadInput(
                f"PIECEWISE graphs with {self.attention_backend}; possible: NONE, FULL_DECODE_ONLY"
            )
        if is_mla and self.block_size not in (16, 32, 64):
            raise BadInput(
                f"block_size={self.block_size} with {self.attention_backend}; possible: 16, 32, 64"
            )

    def fits_a_graph(self, num_reqs: int, num_tokens: int) -> bool:
        """Whether graphs are asked for that a batch fits, captured or not."""
        mode, is_decode = self.cudagraph_mode.name, num_tokens == num_reqs * self.decode_query_len
        return fits_a_graph(mode, self.cudagraph_capture_sizes, num_tokens, is_decode=is_decode)

    @property
    def decode_query_len(self) -> int:
        """Tokens of a request in a decode: its newest and the drafts to be verified. As vLLM's."""
        return 1 + self.num_speculative_tokens if self.verify_drafts else 1

    @property
    def num_lookahead_tokens(self) -> int:
        """Positions behind a request's last token that drafts may be written to."""
        return self.decode_query_len - 1

    def padded(self, num_tokens: int) -> int:
        """The smallest capture size that holds the tokens; without one, their number."""
        return min((n for n in self.cudagraph_capture_sizes if n >= num_tokens), default=num_tokens)

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def max_num_blocks(self) -> int:
        """KV cache blocks one request may need."""
        return -(-self.max_model_len // self.block_size)
