"""What pipeline stages say to each other. Mirrors `vllm/v1/worker/gpu/pp_utils.py` and `get_pp_group`.

Forward go the intermediate tensors, from each stage to the next; back go the sampled tokens, from the last
stage to all others, which need them as the inputs of the next step. Neither makes a stage wait: while a batch
is on its way, the stage runs another one (`Engine.step`). In vLLM 0.23.0 the tokens travel on a side stream
and are awaited as many steps later as there are stages (`PPHandler`, pp_utils.py:53-161); up to 0.22.1 a
stage waits for them at once (`pp_receive`).
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from mrv2lab.errors import BadInput
from mrv2lab.runner.sequence import IntermediateTensors


class PPGroup:
    """A stage's place in the pipeline and its lines to the others. Mirrors `GroupCoordinator`.

    Several stages need `torch.distributed`. `wire` is where tensors must lie to be sent: the device itself
    with NCCL, the CPU with gloo.
    """

    def __init__(
        self, rank_in_group: int = 0, world_size: int = 1, device: str = "cpu", wire: str = "cpu"
    ) -> None:
        self.rank_in_group, self.world_size = rank_in_group, world_size
        self.device, self.wire = torch.device(device), torch.device(wire)

    @property
    def is_first_rank(self) -> bool:
        return self.rank_in_group == 0

    @property
    def is_last_rank(self) -> bool:
        return self.rank_in_group == self.world_size - 1

    def isend_tensor_dict(self, intermediate_tensors: IntermediateTensors) -> list[Callable[[], Any]]:
        """Begin to send to the next stage: names and shapes first, so that it knows what to make room for.
        Returns: what to call before the tensors are written again: each waits for one of them to be sent.
        """
        dst = self.rank_in_group + 1
        shapes = [(name, tuple(t.shape), t.dtype) for name, t in intermediate_tensors.items()]
        dist.send_object_list([shapes], dst, device=torch.device("cpu"))
        on_wire = [tensor.to(self.wire).contiguous() for _, tensor in intermediate_tensors.items()]
        works = [dist.isend(tensor, dst) for tensor in on_wire]
        return [work.wait for work in works if work is not None]

    def recv_tensor_dict(self) -> IntermediateTensors:
        """Wait for what the previous stage sends. It lands in new memory, at another address each time."""
        src = self.rank_in_group - 1
        message: list[Any] = [None]
        dist.recv_object_list(message, src, device=torch.device("cpu"))
        (shapes,) = message
        return IntermediateTensors({name: self._recv(src, shape, dtype) for name, shape, dtype in shapes})

    def _recv(self, src: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=dtype, device=self.wire)
        dist.recv(tensor, src)
        return tensor.to(self.device)

    def broadcast(self, token_ids: list[int]) -> None:
        """Tell the other stages what the last one has sampled. Mirrors `PPHandler.broadcast`."""
        dist.broadcast(torch.tensor(token_ids), src=self.world_size - 1)

    def receive(self, num_reqs: int) -> Callable[[], list[int]]:
        """Make room for what the last stage will sample; returns how to wait. As `PPHandler.receive`."""
        token_ids = torch.empty(num_reqs, dtype=torch.int64)
        work = dist.broadcast(token_ids, src=self.world_size - 1, async_op=True)

        def wait() -> list[int]:
            work.wait()
            return token_ids.tolist()

        return wait


def get_pp_indices(num_layers: int, rank_in_group: int, world_size: int) -> range:
    """The layers of a stage. Mirrors `get_pp_indices`: of two stages the first takes an odd layer. BadInput:
    fewer layers than stages.
    """
    if num_layers < world_size:
        raise BadInput(
            f"num_layers={num_layers} for {world_size} pipeline stages; possible: at least one for each stage"
        )
    start, end = (-(-num_layers * rank // world_size) for rank in (rank_in_group, rank_in_group + 1))
    return range(start, end)
