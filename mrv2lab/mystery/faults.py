"""What can be wrong with a mystery's engine. READING THIS FILE SPOILS THE GAME.

A fault is one function in one seam of `mystery.engine`, beside the one that is right there. An audit finds
it, or else `human` says why not.
"""

from dataclasses import dataclass, field

from mrv2lab.audit import Kind
from mrv2lab.crash import Crash
from mrv2lab.mystery.engine import (
    Part,
    attention,
    block_table,
    cudagraph_utils,
    input_batch,
    logits_processor,
    lora,
    mlp,
    rotary_embedding,
)
from mrv2lab.results import Stated

AUDIT_SILENT: Kind = "audit-silent"  # in place of a kind: a human has to find it

RIGHT_PARTS: dict[str, Part] = {
    "attention.context": attention.context_by_layer,
    "attention.read_kv": attention.read_kv_scaled_back,
    "attention.write_kv": attention.write_kv_always,
    "block_table.write_slots": block_table.write_slots_to_the_end,
    "cudagraph_utils.dispatch": cudagraph_utils.dispatch_by_size,
    "input_batch.write_positions": input_batch.write_positions_in_place,
    "input_batch.write_seq_lens": input_batch.write_seq_lens_staged,
    "logits_processor.compute_logits": logits_processor.compute_logits_by_graph,
    "lora.add_lora": lora.add_lora_to_all,
    "lora.set_lora": lora.set_lora_in_slot,
    "mlp.down_proj": mlp.down_proj_in_buffer,
    "rotary_embedding.extend": rotary_embedding.extend_in_place,
}
"""What belongs into each seam."""


@dataclass(frozen=True)
class Fault:
    """One thing that can be wrong.

    Attributes:
        name: a title, shown when it is solved.
        place: the seam.
        part: the function that is put there.
        kinds: what the audit calls it, causes and no consequences; `audit-silent` if a human has to find it.
        causes: words, each of which names the tensor or the host value behind it.
        verdict: what an engine shows that has this fault only.
        story: how it comes about, how it is seen, how it is repaired.
        human: why the audit cannot find it; empty if it can.
        crash: what it must say, and within what, if a crash is its verdict.
    """

    name: str
    place: str
    part: Part
    kinds: tuple[Kind, ...]
    causes: tuple[str, ...]
    verdict: Stated
    story: str = field(repr=False)
    human: str = ""
    crash: Crash | None = None

    @property
    def right_part(self) -> Part:
        """What belongs there."""
        return RIGHT_PARTS[self.place]


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="The scale that was a float",
        place="attention.read_kv",
        part=attention.read_kv_scaled_up,
        kinds=("frozen-host-value",),
        causes=("kv_scale_float",),
        verdict="wrong",
        story=(
            "Keys are divided by a scale when they are stored, and multiplied by it when they are read. "
            "The scale is kept twice: as a tensor, and as a Python float for whoever wants a number. "
            "Reading takes the float. When graphs are captured nothing has been served, no scale is "
            "settled, and the float is 1.0; the number is passed by value and stays in the graph.\n"
            "Such twins are common: vLLM's attention layers keep _k_scale and _k_scale_float, because "
            "some kernels take a number, and #25513 runs the step that settles them without a graph. The "
            "audit shows the float before and after.\n"
            "Repair: read the scale where the writer reads it, on the device."
        ),
    ),
    Fault(
        name="Nobody keeps what a dummy computes",
        place="attention.write_kv",
        part=attention.write_kv_if_kept,
        kinds=("frozen-host-value",),
        causes=("is_dummy",),
        verdict="wrong",
        story=(
            "A dummy batch has no pages, so writing its keys and values is a waste, and somebody saved it "
            "with a return. Every graph is captured over a dummy batch. So no graph contains the write: a "
            "replayed step answers from the cache and leaves nothing in it, and each step after it misses "
            "one more token.\n"
            "It looks like a memory that fades: the error grows while graphs are replayed. The audit "
            "finds ops that are missing in the graph and the flag that they hung on.\n"
            "Repair: write always. Padding slots are -1, and what goes there nobody reads."
        ),
    ),
    Fault(
        name="Whoever comes first",
        place="attention.context",
        part=attention.context_by_first,
        kinds=("frozen-host-value",),
        causes=("has_context",),
        verdict="wrong",
        story=(
            "Where a token's context lies is the same for all layers, so whoever attends first works it "
            "out and raises a flag. The flag is lowered where a step's inputs are prepared, but a dummy "
            "batch is prepared elsewhere. The first dummy run leaves it up, every capture finds the work "
            "done, and the graphs read what the last eager step has left.\n"
            "Memoising on the host is right in eager code and a trap in captured code: a warm-up is a "
            "first use. The audit names the flag.\n"
            "Repair: let something fixed decide who does the work, such as the index of the layer."
        ),
    ),
    Fault(
        name="Only as far as needed",
        place="attention.context",
        part=attention.context_to_longest,
        kinds=("host-sync",),
        causes=("seq_lens", "longest"),
        verdict="crash",
        crash=Crash(("HostSyncError: ",), within="engine/attention.py in context_to_longest"),
        story=(
            "Attention need not look further than the longest request of the batch, and its length stands "
            "in seq_lens, on the device. int(...) brings it to the host, which must wait for it. While a "
            "graph is captured nothing runs, so there is nothing to wait for, and capture is refused.\n"
            "It is the loudest fault of the family, and the one most often silenced the wrong way: take "
            "the number before capture, and the graph looks one token far for ever.\n"
            "Repair: work to the bound that the metadata states, max_seq_len, and let the device mask the "
            "rest."
        ),
    ),
    Fault(
        name="One token each",
        place="attention.context",
        part=attention.context_with_decode,
        kinds=("frozen-host-value",),
        causes=("max_query_len",),
        verdict="wrong",
        story=(
            "If every request has one token, finding its row is trivial, and a branch takes the short "
            "way. The dummy batch of eight tokens has eight requests, so the graph of eight tokens took "
            "the short way. A prompt of five tokens that joins three decodes makes eight tokens as well, "
            "and gets that graph.\n"
            "Only steps that mix prompts and decodes in a small batch are wrong at once; what they leave "
            "in the cache is wrong for longer. Audit the step in which the error begins, not any step: "
            "max_query_len was 1 and is 5.\n"
            "Repair: one way for all, or a key that tells such graphs apart, as vLLM's uniform decode "
            "graphs have."
        ),
    ),
    Fault(
        name="A bigger table",
        place="rotary_embedding.extend",
        part=rotary_embedding.extend_anew,
        kinds=("moved-address",),
        causes=("cos_sin_cache", "table"),
        verdict="wrong",
        story=(
            "Rows of the position table are made when a request first gets so far. This function makes a "
            "new table and binds it to the old name. The graph holds an address, not a name: it goes on "
            "reading the table that was there at capture, which covers the first eight positions. Behind "
            "them it reads zeros, or, once the memory is lent anew, anything.\n"
            "Early steps of short requests are right, and tests use short requests. vLLM's shared "
            "workspace grew the same way behind the back of captured graphs (#55336). The audit shows "
            "both addresses.\n"
            "Repair: make the table as large as it can ever be, once, and fill it in place."
        ),
    ),
    Fault(
        name="Two of a kind",
        place="input_batch.write_positions",
        part=input_batch.write_positions_in_turn,
        kinds=("moved-address",),
        causes=("positions",),
        verdict="wrong",
        story=(
            "To overlap the copy of the next inputs with the running step, positions are written into two "
            "buffers in turn. Eager code follows the name. The graph was captured over one of the two, "
            "and in every second step it reads the positions of the step before.\n"
            "The first replayed step is right and the second is not; what is wrong goes into the cache, "
            "and soon all are. The audit points at the line that reads. Who re-bound the name is another "
            "question, and the answer to it is the place. Double buffering is fine with graphs, if there "
            "is a graph for each buffer or a copy into the captured one.\n"
            "Repair: write into the tensor that was captured."
        ),
    ),
    Fault(
        name="Begun too early",
        place="input_batch.write_seq_lens",
        part=input_batch.write_seq_lens_early,
        kinds=("audit-silent",),
        causes=("seq_lens", "staged_seq_lens"),
        verdict="wrong",
        human="the inputs are late before the step begins: replay and eager pass read the same wrong lengths",
        story=(
            "Lengths reach the device through staging memory of the host. The copy is begun first, and "
            "the staging memory is written after, so the device gets the lengths of the step before. With "
            "real asynchronous copies the order in the source may even be right, and a missing event does "
            "the same.\n"
            "No graph is to blame: hollow marks are wrong as well, and the audit, which compares a replay "
            "with an eager pass over the same buffers, has nothing to report. That silence is the "
            "evidence: look before the graph. Compare what the buffers hold with what the scheduler asked "
            "for.\n"
            "Repair: fill the staging memory, then copy."
        ),
    ),
    Fault(
        name="Somebody else's page",
        place="block_table.write_slots",
        part=block_table.write_slots_of_tokens,
        kinds=("audit-silent",),
        causes=("slot_mapping", "slots", "PAD_SLOT_ID", "padding"),
        verdict="wrong",
        human="the padding lies in the inputs: replay and eager pass write to the same wrong slots",
        story=(
            "Only the slots of real tokens are written; what lies behind them stays from the step before. "
            "Eagerly nobody reads it. A graph is padded: three requests run in the graph of four, and the "
            "fourth row is no request, but its slot is one. The key of token 0 goes into a page that "
            "somebody owns.\n"
            "It begins when a batch shrinks, and it hurts a request that did nothing. The audit compares "
            "both ways on the same padded batch and sees them agree. Ask what the rows behind the last "
            "request do: their slot must be -1, and whoever writes must know what -1 means (vLLM #43810: "
            "it meant the last slot).\n"
            "Repair: write the whole buffer, padding included, in every step."
        ),
    ),
    Fault(
        name="One of three",
        place="block_table.write_slots",
        part=block_table.write_slots_in_turn,
        kinds=("moved-address", "frozen-host-value"),
        causes=("turn", "slot_mapping"),
        verdict="wrong",
        story=(
            "Three buffers take the slots in turn, so that nothing is overwritten while a step in flight "
            "may read it. All graphs were captured over the first. In two steps of three they write keys "
            "and values where an earlier step had its tokens.\n"
            "The index is a host value, and it chose an address at capture. The damage lies in the cache, "
            "so steps that replay with the right buffer are wrong too.\n"
            "Repair: one buffer at one address; who wants several copies into it."
        ),
    ),
    Fault(
        name="A key that nobody has",
        place="cudagraph_utils.dispatch",
        part=cudagraph_utils.dispatch_uniform,
        kinds=("silent-eager",),
        causes=("uniform_token_count", "desc", "graphs"),
        verdict="eager",
        story=(
            "Graphs are looked up by a descriptor. Capture made its descriptors without a uniform token "
            "count; dispatch fills one in. The two are never equal, the look-up never hits, and every "
            "step runs eagerly: right answers, graphs in memory, and no speed.\n"
            "No test of answers can see it. Look for filled marks: there are none. vLLM #36165 repaired "
            "exactly this for speculative decoding, where FULL graphs had not been dispatched at all, at "
            "half the speed.\n"
            "Repair: one function makes the key for both sides, and a counter tells how often it hits."
        ),
    ),
    Fault(
        name="Only a perfect fit",
        place="cudagraph_utils.dispatch",
        part=cudagraph_utils.dispatch_exact,
        kinds=("silent-eager",),
        causes=("num_tokens", "size", "padding", "num_tokens_after_padding"),
        verdict="eager",
        story=(
            "The descriptor is made of the batch as it is, and not of the graph size that it would be "
            "padded to. A batch of four finds the graph of four; a batch of three finds nothing and runs "
            "eagerly, with all answers right.\n"
            "A benchmark with a full batch sees graphs, and traffic that comes and goes does not. Filled "
            "and hollow marks side by side give it away: which sizes are hollow? The audit has to be "
            "given such a step. In vLLM, #53407 lets uniform decode batches round up to a graph that they "
            "used to miss.\n"
            "Repair: round up to a captured size first, and look that up."
        ),
    ),
    Fault(
        name="New memory is zero",
        place="mlp.down_proj",
        part=mlp.down_proj_in_place,
        kinds=("unwritten-read", "frozen-host-value"),
        causes=("sums", "is_capturing"),
        verdict="wrong",
        story=(
            "Two halves of a product are added up in one buffer, which must begin at zero. Somebody knew "
            "that new memory of a driver is zeroed, and left the memset out of graphs, whose pool is new. "
            "It is new once. Graphs share the pool, and from the second replay on the buffer begins with "
            "what the last tenant left, which may be its own sum.\n"
            "On a fresh process the first graph is right, so a short test passes. The audit fills such "
            "memory with two patterns and watches the result follow them.\n"
            "Repair: the memset belongs into the graph."
        ),
    ),
    Fault(
        name="Read it later",
        place="logits_processor.compute_logits",
        part=logits_processor.compute_logits_in_pool,
        kinds=("audit-silent",),
        causes=("outputs", "logits"),
        verdict="wrong",
        human="the step is right when it ends; its result is overwritten later, by the next replay",
        story=(
            "The logits are handed out where the graph left them. That memory belongs to the graph, and "
            "its next replay writes there again. Who looks at once sees right numbers; who keeps them for "
            "later, as an engine that overlaps steps does, finds those of another step.\n"
            "The sign is odd: of all steps with the same number of requests at most the last is right, "
            "and steps that ran eagerly are wrong too, for their logits came from a graph as well. "
            "torch.compile raises an error for it (output of a CUDA graph overwritten by a subsequent "
            "run); bare graphs do not. The audit looks at a step when it has ended, and it is right then.\n"
            "Repair: copy before you hand out."
        ),
    ),
    Fault(
        name="As many as there were",
        place="lora.add_lora",
        part=lora.add_lora_active,
        kinds=("frozen-host-value", "frozen-grid"),
        causes=("num_active_loras_cpu", "num_active_loras", "grid"),
        verdict="wrong",
        story=(
            "The grid of the LoRA kernels has one layer for each adapter in the batch, and requests "
            "without an adapter count as one more. Three adapters took part in the dummy batch, and "
            "nobody went without. So the graph launches three layers, and in a batch of three adapters "
            "and one request without any, the last adapter gets no block.\n"
            "Only requests with that adapter are wrong, only in full company. A grid is a host value like "
            "any other; the audit names the number that sized it.\n"
            "Repair: launch for the most that there can be, or key the graphs by the number, as vLLM does "
            "since 0.24."
        ),
    ),
    Fault(
        name="Loaded beside",
        place="lora.set_lora",
        part=lora.set_lora_aside,
        kinds=("moved-address",),
        causes=("lora_a_stacked", "lora_b_stacked"),
        verdict="wrong",
        story=(
            "A new adapter is written into a copy of all slots, and the copy is bound to the old name, so "
            "that a running step is not disturbed. The graph is not disturbed either: it reads the slots "
            "as they were at capture, with the adapters of the dummy batch, in memory that nobody may own "
            "any more.\n"
            "Whoever asks for no adapter gets right answers. The audit shows the old address and the new "
            "one.\n"
            "Repair: slots stay where they are; write into them."
        ),
    ),
)
