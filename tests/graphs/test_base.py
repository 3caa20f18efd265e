"""What nodes are called, and how memory is laid over."""

import pytest
import torch

from mrv2lab.graphs import Node
from mrv2lab.graphs.addresses import over


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("_lora_shrink_kernel", "_lora_shrink_kernel"),
        ("aten.mm", "aten.mm"),
        ("void at::native::fill<4, at::native::Functor<float> >(int, char*)", "fill"),
        ("void at::native::(anonymous namespace)::index<float>(Tensor)", "index"),
    ],
)
def test_labels_are_short_and_names_are_whole(name, label):
    node = Node(name, None, ())
    assert (node.name, node.label) == (name, label)


def test_memory_that_ends_in_the_middle_of_an_element_can_be_laid_over():
    memory = torch.arange(10, dtype=torch.uint8)
    like = torch.zeros(2)
    assert over(memory, like).shape == (2,) and over(memory, like).data_ptr() == memory.data_ptr()
