"""What one pipeline stage hands to the next. Mirrors `vllm/sequence.py`."""

from collections.abc import ItemsView, KeysView
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import register_pytree_node


@dataclass(frozen=True)
class IntermediateTensors:
    """`hidden_states` and `residual`, each [num_tokens, hidden_size]. Mirrors `IntermediateTensors`."""

    tensors: dict[str, torch.Tensor]

    def __getitem__(self, key: str | slice) -> Any:
        """One tensor by name, or these rows of all of them: the same memory, no copy."""
        if isinstance(key, str):
            return self.tensors[key]
        return IntermediateTensors({name: tensor[key] for name, tensor in self.tensors.items()})

    def keys(self) -> KeysView[str]:
        return self.tensors.keys()

    def items(self) -> ItemsView[str, torch.Tensor]:
        return self.tensors.items()


# Whoever looks for the tensors among the arguments of a model finds these too: above all, what checks that
# the inputs of a captured piece have not moved.
register_pytree_node(
    IntermediateTensors,
    lambda value: (list(value.tensors.values()), list(value.tensors)),
    lambda tensors, names: IntermediateTensors(dict(zip(names, tensors, strict=True))),
)


def copy_same_keys(buffers: IntermediateTensors, received: IntermediateTensors) -> None:
    """Copy what arrived into the first rows of the buffers, whose addresses stay, and insist that it is all.
    ValueError: the previous stage sent other tensors than this one has buffers for.
    """
    if received.keys() != buffers.keys():
        raise ValueError(
            f"the previous stage sent {sorted(received.keys())}, this one reads {sorted(buffers.keys())}; "
            "both must be built for the same model"
        )
    for name, tensor in received.items():
        buffers[name][: len(tensor)].copy_(tensor)
