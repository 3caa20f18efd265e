"""Tensors in nested arguments: found, changed, and the same twice, as torch's pytree has them."""

from collections import namedtuple

import torch
from torch.utils import _pytree

from mrv2lab.graphs.nested import each_tensor, leaves, once, tensors_in

Pair = namedtuple("Pair", "one other")


def nested():
    a, b, c = (torch.full((2,), float(n)) for n in range(3))
    return ([a, 1, None], {"b": b, "more": (c, "text")}, Pair(a, 2.0), torch.Size([3]))


def test_leaves_are_those_of_pytree_in_its_order():
    values = nested()
    assert [*map(id, leaves(values))] == [*map(id, _pytree.tree_leaves(values))]
    assert [t[0].item() for t in tensors_in(values)] == [0, 1, 2, 0]


def test_each_tensor_is_changed_and_all_else_stays():
    values = nested()
    ours = each_tensor(lambda t: t[0].item(), values)
    theirs = _pytree.tree_map_only(torch.Tensor, lambda t: t[0].item(), values)
    assert ours == theirs and [*map(type, ours)] == [*map(type, theirs)]


def test_a_tensor_that_is_given_twice_stays_one():
    (first, *_), _, pair, _ = each_tensor(once(torch.clone), nested())
    assert first is pair.one
