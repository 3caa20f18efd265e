"""What the runner remembers of each request between steps. Mirrors `vllm/v1/worker/gpu/states.py`."""

from collections.abc import Sequence

import numpy as np


class RequestState:
    """Token ids and progress by request index, in host memory. Mirrors `RequestState` and `LoraState`."""

    def __init__(self, max_num_reqs: int, max_model_len: int):
        self.req_id_to_index: dict[str, int] = {}
        self.free_indices = list(range(max_num_reqs))
        self.all_token_ids = np.zeros((max_num_reqs, max_model_len), dtype=np.int64)
        self.total_len = np.zeros(max_num_reqs, dtype=np.int64)  # known tokens
        self.num_computed_tokens = np.zeros(max_num_reqs, dtype=np.int64)
        self.lora_ids = np.zeros(max_num_reqs, dtype=np.int64)  # 0 for none

    def add_request(self, req_id: str, prompt_token_ids: Sequence[int], lora_id: int) -> int:
        """Take a free index for a new request and return it."""
        index = self.free_indices.pop()
        self.req_id_to_index[req_id] = index
        self.all_token_ids[index, : len(prompt_token_ids)] = prompt_token_ids
        self.total_len[index] = len(prompt_token_ids)
        self.num_computed_tokens[index] = 0
        self.lora_ids[index] = lora_id
        return index

    def remove_request(self, req_id: str) -> None:
        self.free_indices.append(self.req_id_to_index.pop(req_id))

    def append_tokens(self, req_id: str, token_ids: list[int]) -> None:
        self.set_draft_tokens(req_id, token_ids)
        self.total_len[self.req_id_to_index[req_id]] += len(token_ids)

    def draft_token_ids(self, req_id: str, num_drafts: int) -> list[int]:
        """The tokens that were put behind the known ones."""
        index = self.req_id_to_index[req_id]
        start = self.total_len[index]
        drafts: list[int] = self.all_token_ids[index, start : start + num_drafts].tolist()
        return drafts

    def set_draft_tokens(self, req_id: str, token_ids: list[int]) -> None:
        """Put tokens behind the known ones, where the next step reads its input; known they are not."""
        index = self.req_id_to_index[req_id]
        start = self.total_len[index]
        self.all_token_ids[index, start : start + len(token_ids)] = token_ids
