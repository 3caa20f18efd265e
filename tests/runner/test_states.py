"""What the runner remembers between steps, and when a request may start."""

import numpy as np
import torch

from mrv2lab.runner import CUDAGraphMode, Engine, LoRAMapping, ModelRunner, Request, RunnerConfig
from mrv2lab.runner.block_table import NULL_BLOCK, BlockTables
from mrv2lab.runner.model import rotary
from mrv2lab.runner.punica_wrapper import PunicaWrapper
from mrv2lab.runner.scheduler import Scheduler
from mrv2lab.runner.states import RequestState

CPU = torch.device("cpu")


def test_a_request_that_takes_over_an_index_brings_all_of_its_own():
    states = RequestState(max_num_reqs=1, max_model_len=4)
    states.add_request("first", [5, 6, 7], lora_id=2)
    states.append_tokens("first", [8])
    states.remove_request("first")
    index = states.add_request("second", [9], lora_id=1)
    assert (states.total_len[index], states.num_computed_tokens[index], states.lora_ids[index]) == (1, 0, 1)
    assert states.all_token_ids[index, 0] == 9


def test_no_block_of_the_request_before_is_left():
    tables = BlockTables(RunnerConfig(block_size=4, max_num_reqs=1, max_model_len=12, max_num_tokens=4), CPU)
    tables.set_block_ids(0, [4, 5, 6])
    tables.set_block_ids(0, [7])
    tables.prepare(np.array([0]), np.array([0]), np.array([0]))
    assert tables.input_block_table.tolist() == [[7, NULL_BLOCK, NULL_BLOCK]]


def test_a_request_waits_until_one_of_so_many_has_ended():
    scheduler = Scheduler(RunnerConfig(max_num_reqs=2))
    scheduler.waiting += [Request(f"r{i}", (1, 2), max_tokens=1) for i in range(3)]
    assert list(scheduler.schedule().num_scheduled_tokens) == ["r0", "r1"]
    scheduler.update_from_output({"r0": [1], "r1": [1]})
    assert list(scheduler.schedule().num_scheduled_tokens) == ["r2"]


def test_positions_turn_each_pair_by_its_own_frequency():
    x = torch.tensor([[[1.0, 1.0, 0.0, 0.0]]])  # pairs (0, 2) and (1, 3)
    turned = rotary(x, torch.tensor([3]))
    slow = torch.tensor(3 / 10000**0.5)
    wanted = torch.stack([torch.tensor(3.0).cos(), slow.cos(), torch.tensor(3.0).sin(), slow.sin()])
    torch.testing.assert_close(turned.flatten(), wanted)


def test_a_mapping_programs_requests_as_well_as_tokens():
    wrapper = PunicaWrapper(8, 2, 64, CPU, specialize_active_lora=False)
    tokens, requests = wrapper.token_mapping_meta, wrapper.prompt_mapping_meta
    wrapper.update_metadata(LoRAMapping((1, 1, 0), (1, 0)), [None, 1])
    assert not tokens.no_lora_flag_cpu and not requests.no_lora_flag_cpu
    wrapper.update_metadata(LoRAMapping((1, 1), (0,)), [None, 1])
    assert not tokens.no_lora_flag_cpu and requests.no_lora_flag_cpu


def test_what_the_model_returned_is_what_is_sampled_from(monkeypatch):
    config = RunnerConfig(
        num_layers=1, hidden_size=32, intermediate_size=32, vocab_size=64, cudagraph_mode=CUDAGraphMode.NONE
    )
    runner, returned = ModelRunner(config, "emulated"), []
    runner.warm_up_and_capture()
    forward = runner.model.forward

    def noted(*args, **kwargs):
        returned.append(forward(*args, **kwargs))
        return returned[-1]

    monkeypatch.setattr(runner.model, "forward", noted)
    engine = Engine(runner)
    engine.add_request(Request("r", (1, 2, 3), max_tokens=2))
    engine.step()
    kept = runner.hidden_states[: len(returned[-1])]
    assert torch.equal(kept, returned[-1]) and kept.abs().sum() > 0
