"""The questions of the quiz: what a reader of the pages can answer, and where the answers stand.

Each question names a notebook, a section of it, and a few of its words in which the answer lies: a test
holds that they are there, as text, so that nothing has to be run to know the answer.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """A question with one right choice.

    Attributes:
        name: under which an answer is kept.
        text: the question; backticks mark code, as in the other texts.
        choices: in the order in which they are shown, lettered from a.
        right: the letter of the right one.
        why: in a sentence or two.
        notebook: file in which the answer stands.
        section: the heading there.
        says: words of that section in which the answer lies.
    """

    name: str
    text: str
    choices: tuple[str, ...]
    right: str
    why: str
    notebook: str
    section: str
    says: str

    @property
    def place(self) -> str:
        """Where the answer stands, for people."""
        return f"notebook {self.notebook[:2]}, “{self.section.replace('`', '')}”"


QUESTIONS = (
    Question(
        "after-capture",
        "`graph = capture(step)` has just returned. What does `graph.outputs` hold?",
        (
            "the result of `step` for the inputs of the capture",
            "whatever its memory held: nothing has been computed yet",
            "zeros",
        ),
        "b",
        "Capture runs the Python and writes the work down. The work is done at replay.",
        "01_capture_and_replay.ipynb",
        "1. Capture does not compute",
        "is only a place where a result will be",
    ),
    Question(
        "flag",
        "A flag in host memory is down while a graph is captured, and up when it is replayed. What is done?",
        (
            "the work of the branch that was taken at capture",
            "the work of the other branch, for the flag is read again",
            "nothing: the replay fails",
        ),
        "a",
        "The host is not asked again, and a kernel that was not launched at capture is not in the graph.",
        "01_capture_and_replay.ipynb",
        "3. What the host read is frozen",
        "No later value of the flag can put it there",
    ),
    Question(
        "feed",
        "How does a graph get the inputs of the next step?",
        (
            "as arguments of `replay`",
            "by giving its input's name a new tensor",
            "they are written into the tensors that were captured",
        ),
        "c",
        "A graph knows addresses, and a name belongs to Python.",
        "01_capture_and_replay.ipynb",
        "5. A graph knows addresses, not names",
        "write into the tensor it knows",
    ),
    Question(
        "eager-verdict",
        "Every answer of an engine is right. It was asked for graphs and replayed none. Its verdict?",
        ("`correct`", "`eager`", "`wrong`"),
        "b",
        "You pay for graphs and do not get them; a test of answers alone will never say so.",
        "00_start_here.ipynb",
        "Your first bug, in one minute",
        "the answers are right, but no graph ran",
    ),
    Question(
        "padding",
        "Three requests want one token each; there are graphs for 1, 2, 4 and 8 tokens. What happens?",
        (
            "the step runs eagerly, for no graph has three rows",
            "the graphs for 2 and for 1 are replayed",
            "the graph for 4 is replayed, with a row of padding",
        ),
        "c",
        "The smallest graph that holds the batch is taken; the row too many is computed and thrown away.",
        "02_mini_runner.ipynb",
        "4. Dispatch finds a graph",
        "The smallest that holds the batch is for four",
    ),
    Question(
        "slot",
        "Blocks hold 8 tokens. A request owns the blocks 1 and 2. Into which slot goes its position 8?",
        ("8", "16", "24"),
        "b",
        "Position 8 is the first place of its second block: 2 × 8 + 0.",
        "02_mini_runner.ipynb",
        "6. `BlockTables`: where keys and values live",
        "block 2, slot 2 × 8 + 0 = 16",
    ),
    Question(
        "which-kernel",
        "The launch of a Triton kernel fails with `device-side assert triggered`. What do you know?",
        (
            "some kernel that was launched earlier, or this one, has failed",
            "this kernel has a fault",
            "this kernel was given a wrong index",
        ),
        "a",
        "Work is queued. The host learns of a failure at some later call and names what it is doing then.",
        "11_lora_device_assert.ipynb",
        "Evidence",
        "What it names then is whatever it was doing at that time",
    ),
    Question(
        "lucky",
        "A dummy run reads an index that nobody wrote, and passes. Why?",
        (
            "fresh memory is zero",
            "the memory happened to hold a number that is small enough",
            "dummy runs skip the look-up",
        ),
        "b",
        "What stands in fresh memory was left by others; whether it passes depends on what ran before.",
        "11_lora_device_assert.ipynb",
        "Cause",
        "Memory that happens to hold small numbers",
    ),
    Question(
        "two-exits",
        "A LoRA operation can leave early on the host, by `no_lora_flag_cpu`, or on the device, where "
        "`lora_id == -1`. Which of the two is decided anew in each replay?",
        ("the one on the host", "the one on the device", "both"),
        "b",
        "The kernel reads memory that every step writes. The host's branch was taken once, at capture.",
        "12_lora_short_circuit.ipynb",
        "Cause",
        "so a captured kernel decides anew in each replay",
    ),
    Question(
        "context-of-one",
        "A model is captured as a whole over a dummy batch. Its replays are right for a context of one "
        "token and wrong for longer ones. What was frozen?",
        (
            "the addresses of the input buffers",
            "the lengths in `seq_lens`, on the device",
            "`max_seq_len`, a number of the host's that was 1 at capture",
        ),
        "c",
        "Each replay reads `seq_lens` afresh. How far to look at all, the host decides before it launches.",
        "13_breakable_graph.ipynb",
        "Cause",
        "the graph looks at one position of each context",
    ),
    Question(
        "break-output",
        "Why must an op at which a capture breaks write into an output that the caller provides?",
        (
            "a returned tensor would be a new one at each replay, and the graph behind would read the first",
            "an op that runs eagerly may not allocate memory",
            "the output would be computed twice",
        ),
        "a",
        "The next graph knows the address of the tensor that was there at capture.",
        "13_breakable_graph.ipynb",
        "The rules",
        "A tensor that the op returns is new at every replay",
    ),
    Question(
        "stale-plan",
        "Warm-up and capture share one FlashMLA metadata object. What is wrong with the graph?",
        (
            "it holds two planners",
            "it holds no planner, and follows the plan that the warm-up made",
            "its planner runs after attention",
        ),
        "b",
        "The warm-up was the first call and made the plan, so at capture the host skipped the planner.",
        "14_flashmla_lazy_init.ipynb",
        "Cause one",
        "the host skipped the planner, and a kernel that is not launched is not captured",
    ),
    Question(
        "never-ran",
        "A capture has just set `tile_scheduler_metadata` to a tensor. Has the planner run?",
        (
            "yes, or it would be None",
            "yes, once for the dummy batch",
            "no: it is recorded, and will run at the first replay",
        ),
        "c",
        "Capture executes nothing. The host has allocated the tensor; what fills it is recorded.",
        "14_flashmla_lazy_init.ipynb",
        "Symptom two: a crash in a warm-up",
        "Capture executes nothing",
    ),
    Question(
        "new-memory",
        "The early return is struck out, and the last stage of a pipeline captures graphs. Why is it wrong?",
        (
            "its graphs read where the stand-in lay at capture; what arrives lies somewhere else",
            "its graphs hold fewer kernels than the eager step",
            "the first stage sends token ids that moved",
        ),
        "a",
        "What is received lands in new memory in every step, and a graph holds an address, not a tensor.",
        "15_pp_eager_fallback.ipynb",
        "Cause",
        "Each step then receives the real thing somewhere else",
    ),
    Question(
        "views",
        "Metadata of a batch of eight are kept, and nobody has used them. Later the same builder has built "
        "for a batch of one. What do the kept ones say?",
        ("what the batch of eight needs", "what the batch of one needs", "that they are not valid any more"),
        "b",
        "They are views of the builder's one buffer, and every build writes there.",
        "16_stale_view.ipynb",
        "Cause",
        "their memory has been written for 4, for 2 and for 1 in the meantime",
    ),
    Question(
        "two-counts",
        "Graphs are keyed by the number of adapters of a batch. A batch with two adapters and a request "
        "without one replays the graph of key 2. What has that graph no room for?",
        ("the request without an adapter", "the first adapter", "the last adapter"),
        "c",
        "The grid counts ids, sorted, and -1 is the first of them. The key does not count it.",
        "17_lora_frozen_grid.ipynb",
        "Evidence",
        "the last adapter is lost",
    ),
    Question(
        "forced",
        "Why are tokens forced when two engines are compared?",
        (
            "it is faster than sampling",
            "after the first token that differs, two runs see different texts and cannot be compared",
            "without it graphs would not be replayed",
        ),
        "b",
        "With the same text in both, what differs in the logits is what the graphs did.",
        "20_real_vllm.ipynb",
        "How an answer is judged",
        "after the first other token two runs see different texts",
    ),
    Question(
        "never-released",
        "Through the releases, `lora_short_circuit` goes from `not there` to `fixed`. How can that be?",
        (
            "bug and repair reached a release together",
            "the probe failed on the releases between",
            "the bug was never real",
        ),
        "a",
        "It came with another repair and was repaired before the next release. Who followed main had it.",
        "21_through_the_releases.ipynb",
        "The table",
        "A bug may never have been released",
    ),
    Question(
        "no-finding",
        "An audit of your step finds nothing. What does that say?",
        (
            "the step can be captured safely",
            "nothing was found at these inputs, with this `vary`, on this executor",
            "the step launches no kernel",
        ),
        "b",
        "What `vary` does not change, the audit cannot see change.",
        "30_audit_your_code.ipynb",
        "Your own step",
        "none at these inputs, with this vary, on this executor",
    ),
)
