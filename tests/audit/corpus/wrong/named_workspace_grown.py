"""The caller writes multimodal embeddings into a workspace by name, which has been reallocated for a
longer prompt.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address"]
SUBJECTS = ["workspace", "buffers", "embeds", "inputs_embeds"]


class WorkspaceManager:
    """Named scratch memory, reallocated whenever somebody asks for more."""

    def __init__(self):
        self.buffers = {}

    def get(self, name, numel):
        have = self.buffers.get(name)
        if have is None or have.numel() < numel:
            self.buffers[name] = torch.zeros(2 * numel, device=DEVICE)
        return self.buffers[name]


class MultimodalModel:
    DIM = 4

    def __init__(self):
        torch.manual_seed(0)
        self.workspace = WorkspaceManager()
        self.proj = torch.randn(self.DIM, self.DIM, device=DEVICE)
        self.text = torch.randn(3, self.DIM, device=DEVICE)
        self.stage(2)

    def stage(self, image_tokens):
        flat = self.workspace.get("inputs_embeds", image_tokens * self.DIM)
        values = torch.linspace(-1, 1, image_tokens * self.DIM) * image_tokens
        flat.zero_()
        flat[: image_tokens * self.DIM].copy_(values)

    def forward(self):
        staged = self.workspace.buffers["inputs_embeds"]  # HERE
        image = staged[: 3 * self.DIM].view(3, self.DIM)  # HERE
        fused = torch.tanh(image @ self.proj) + self.text  # HERE
        return fused.logsumexp(0)


def make():
    model = MultimodalModel()
    image_tokens = 2

    def vary():
        nonlocal image_tokens
        image_tokens *= 3
        model.stage(image_tokens)

    return {"step": model.forward, "vary": vary, "reset": None}
