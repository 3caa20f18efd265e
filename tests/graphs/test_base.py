"""What nodes are called."""

import pytest

from mrv2lab.graphs import Node


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
