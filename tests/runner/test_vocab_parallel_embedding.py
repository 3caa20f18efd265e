"""Adapters on the embedding: which rows are looked up, which are left alone, and what a graph holds of it."""

import pytest
import torch

from mrv2lab.runner import CUDAGraphMode, Engine, LoRAMapping, ModelRunner, Request, RunnerConfig

SMALL = {
    "num_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "vocab_size": 64,
    "lora_embedding": True,
}


def make_runner(backend, **config):
    return ModelRunner(RunnerConfig(**SMALL | config), backend)


def embed(runner, token_ids, lora_ids):
    mapping = LoRAMapping(tuple(lora_ids), (0,))
    runner.lora_manager.set_active_adapters(set(lora_ids) - {0}, mapping)
    ids = torch.tensor(token_ids, dtype=torch.int32, device=runner.device)
    with torch.inference_mode():
        return runner.model.embed_tokens(ids).cpu()


def test_each_token_gets_the_row_of_its_own_adapter(backend):
    runner = make_runner(backend)
    token_ids, lora_ids = [3, 63, 3, 0, 9], [2, 1, 1, 0, 3]
    got = embed(runner, token_ids, lora_ids)
    layer = runner.model.embed_tokens.cpu()
    slots = [runner.lora_manager.lora_index_to_id.index(i) if i else None for i in lora_ids]
    for row, token, slot in zip(got, token_ids, slots, strict=True):
        expected = layer.base_layer.weight[token].double()
        if slot is not None:
            expected = (
                expected + layer.lora_b_stacked[0, slot].double() @ layer.lora_a_stacked[slot, token].double()
            )
        torch.testing.assert_close(row.double(), expected, rtol=1e-5, atol=1e-5)
    assert (got[0] - got[2]).norm() > 0.05  # one token, two adapters


def test_a_row_without_adapter_is_the_base_row_to_the_last_bit(backend):
    runner = make_runner(backend)
    got = embed(runner, [5, 6, 7], [0, 1, 0])
    base = runner.model.embed_tokens.base_layer.weight.cpu()
    assert got[0].equal(base[5]) and got[2].equal(base[7])
    assert not got[1].equal(base[6])


def test_an_adapter_changes_the_embedding_as_much_as_it_changes_a_projection():
    runner = make_runner("emulated")
    base = runner.model.embed_tokens.base_layer.weight
    changed = embed(runner, list(range(64)), [1] * 64) - base
    assert 0.2 < changed.norm() / base.norm() < 0.3  # 2 / rank


def test_where_each_token_looks():
    runner = make_runner("emulated")
    embed(runner, [0, 0, 0, 0], [3, 0, 1, 1])
    wrapper = runner.lora_manager.punica_wrapper_mapping["language_model"]
    slots = [runner.lora_manager.lora_index_to_id.index(i) for i in (3, 1, 1)]
    indices = wrapper._embeddings_indices[:4].tolist()
    assert indices == [slots[0] * 64, 0, slots[1] * 64, slots[2] * 64]
    assert (runner.config.max_loras - 1) * 64 in indices or 0 in slots


@pytest.fixture(params=[True, False], ids=["with", "without"])
def kernels(request):
    runner = make_runner("emulated", lora_embedding=request.param, cudagraph_capture_sizes=(1,))
    runner.warm_up_and_capture()
    (graph,) = runner.cudagraph_manager.graphs.values()
    return request.param, graph.kernels()


def test_it_costs_a_graph_one_expand_and_no_shrink(kernels):
    has_lora_embedding, counts = kernels
    assert counts["_lora_shrink_kernel"] == 4
    assert counts["_lora_expand_kernel"] == 4 + has_lora_embedding


def test_without_it_the_weights_of_the_other_layers_are_the_same():
    one, other = make_runner("emulated"), make_runner("emulated", lora_embedding=False)
    assert one.model.lm_head.weight.equal(other.model.lm_head.weight)
    assert one.model.embed_tokens.base_layer.weight.equal(other.model.embed_tokens.weight)


def test_graphs_and_eager_give_the_same_logits(backend):
    def serve(mode):
        runner = make_runner(backend, cudagraph_mode=mode)
        runner.warm_up_and_capture()
        engine = Engine(runner)
        for i, lora_id in enumerate((1, 0, 2)):
            engine.add_request(Request(f"r{i}", (1 + i, 2, 3), 3 + i, lora_id))
        return list(iter(engine.step, None))

    full, eager = serve(CUDAGraphMode.FULL), serve(CUDAGraphMode.NONE)
    assert sum(step.num_replays for step in full) >= 4
    for step, reference in zip(full, eager, strict=True):
        torch.testing.assert_close(step.logits, reference.logits, rtol=1e-4, atol=1e-4)
