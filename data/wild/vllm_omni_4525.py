"""Streamed speech lagged once near its start if graphs were on. The vocoder makes a fixed number of samples
fewer than its nominal rate, since its convolution looks back. Codes are padded to the size of a graph, and
what the graph makes was cut to the nominal length of the real codes: what the convolution had left out is
made up from the padding. Repaired by cutting off what the padding is worth, counted from the captured length.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture, new_pool

PROJECT = "vLLM-Omni"
LINK = "https://github.com/vllm-project/vllm-omni/pull/4525"
MECHANISM = "padding-leak"
CAUSE = "nominal"
LINE = "return wav[:nominal]"
EXECUTORS = ("emulated", "cuda")

CODEBOOK, TOTAL_UPSAMPLE, KERNEL = 16, 4, 4
CAPTURE_SIZES = (4, 8, 16)


class Code2Wav:
    """Codes to samples: an embedding, repeated, and a convolution without padding of its own."""

    total_upsample = TOTAL_UPSAMPLE

    def __init__(self, device: torch.device):
        self.embedding = torch.sin(torch.arange(CODEBOOK, device=device) + 1.0)
        self.kernel = torch.linspace(0.5, 2, KERNEL, device=device)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        coarse = self.embedding[codes].repeat_interleave(self.total_upsample)
        return torch.tanh(coarse.unfold(0, KERNEL, 1) @ self.kernel)


class CUDAGraphDecoderWrapper:
    """Decodes by the smallest graph that fits, or eagerly if there is none."""

    def __init__(self, fixed: bool, decoder: Code2Wav, device: torch.device):
        self.fixed, self.decoder = fixed, decoder
        backend = "cuda" if device.type == "cuda" else "emulated"
        pool = new_pool(backend)
        self.static_inputs, self.graphs = {}, {}
        for size in reversed(CAPTURE_SIZES):
            self.static_inputs[size] = torch.zeros(size, dtype=torch.int64, device=device)
            decoder.forward(self.static_inputs[size])
            self.graphs[size] = capture(
                lambda size=size: decoder.forward(self.static_inputs[size]), backend=backend, pool=pool
            )

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        actual_size = codes.shape[0]
        padded_size = next((size for size in CAPTURE_SIZES if size >= actual_size), None)
        if padded_size is None:
            return self.decoder.forward(codes)
        static_input = self.static_inputs[padded_size]
        static_input.zero_()
        static_input[:actual_size].copy_(codes)
        self.graphs[padded_size].replay()
        return self.trimmed(self.graphs[padded_size].outputs, actual_size, padded_size).clone()

    def trimmed(self, wav: torch.Tensor, actual_size: int, padded_size: int) -> torch.Tensor:
        if self.fixed:
            surplus = (padded_size - actual_size) * self.decoder.total_upsample
            return wav[: wav.shape[0] - surplus]
        nominal = actual_size * self.decoder.total_upsample
        return wav[:nominal]


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    decoder = Code2Wav(device)
    wrapper = CUDAGraphDecoderWrapper(fixed, decoder, device)
    talker, chunk_sizes = torch.Generator().manual_seed(0), iter((3, 6, 8, 16))
    chunk = SimpleNamespace(codes=torch.zeros(4, dtype=torch.int64, device=device))

    def vary() -> None:
        size = next(chunk_sizes)
        chunk.codes = torch.randint(1, CODEBOOK, (size,), generator=talker).to(device)

    return SimpleNamespace(
        step=lambda: wrapper.decode(chunk.codes),
        eager=lambda: decoder.forward(chunk.codes),
        own_graphs=True,
        vary=vary,
        requests=4,
        wrapper=wrapper,
    )
