"""Of a long log the last lines are kept, and the line that says what went wrong. Logs as vLLM writes them."""

import pytest

from mrv2lab.live.log import Lines, Log

TRITON = """
INFO 11-21 07:16:20 [gpu_model_runner.py:3020] Graph capturing finished in 4 secs, took 0.37 GiB
/build/kernels/lora_shrink_op.py:81: void: Assertion `lora_id < max_loras` failed.
(EngineCore_DP0 pid=4242) ERROR 11-21 07:16:24 [core.py:304] EngineCore encountered a fatal error.
(EngineCore_DP0 pid=4242) ERROR 11-21 07:16:24 [core.py:304] Traceback (most recent call last):
(EngineCore_DP0 pid=4242) ERROR 11-21 07:16:24 [core.py:304]   File "vllm/v1/engine/core.py", line 295, in run
(EngineCore_DP0 pid=4242) ERROR 11-21 07:16:24 [core.py:304]     raise RuntimeError("step")
(EngineCore_DP0 pid=4242) ERROR 11-21 07:16:24 [core.py:304] RuntimeError: Triton Error [CUDA]: device-side assert triggered
(EngineCore_DP0 pid=4242) Process EngineCore_DP0:
(EngineCore_DP0 pid=4242) Traceback (most recent call last):
(EngineCore_DP0 pid=4242)   File "multiprocessing/process.py", line 314, in _bootstrap
(EngineCore_DP0 pid=4242) RuntimeError: Triton Error [CUDA]: device-side assert triggered
Traceback (most recent call last):
  File "worker.py", line 9, in <module>
    raise EngineDeadError() from error
vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.
"""  # noqa: E501
ILLEGAL = """
(EngineCore pid=7) (Worker_TP0 pid=8) ERROR 11-21 07:16:24 [multiproc_executor.py:671] RuntimeError: CUDA error: an illegal memory access was encountered
(EngineCore pid=7) (Worker_TP0 pid=8) ERROR 11-21 07:16:24 [multiproc_executor.py:671] CUDA kernel errors might be asynchronously reported at some other API call.
(EngineCore pid=7) (Worker_TP0 pid=8) ERROR 11-21 07:16:24 [multiproc_executor.py:671] For debugging consider passing CUDA_LAUNCH_BLOCKING=1
(EngineCore pid=7) ERROR 11-21 07:16:24 [core.py:866] RuntimeError: Worker failed with error 'CUDA error: an illegal memory access was encountered', please check the stack trace above for the root cause
(EngineCore pid=7) RuntimeError: cancelled
Exception ignored in: <function LLMEngine.__del__ at 0x7f>
AttributeError: 'NoneType' object has no attribute 'shutdown'
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}
"""  # noqa: E501
CPP = """
[rank0]:     self.graph.replay()
terminate called after throwing an instance of 'c10::AcceleratorError'
  what():  CUDA error: an illegal memory access was encountered
Exception raised from c10_cuda_check_implementation at CUDAException.cpp:43 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f in libc10.so)
"""
NO_GPU = """
ModuleNotFoundError: No module named 'triton_kernels'
\x1b[1;36m(EngineCore pid=7)\x1b[0;0m ERROR 11-21 07:16:24.123 [core.py:866] ValueError: No available memory for the cache blocks.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
[W1121 07:16:25 ProcessGroupNCCL.cpp:1538] Warning: destroy_process_group() was not called
"""  # noqa: E501
TWO = """
RuntimeError: CUDA error: the first
During handling of the above exception, another exception occurred:
[rank0]: torch.AcceleratorError: CUDA error: the second
"""
KILLED = """
(EngineCore pid=7) INFO 11-21 07:16:20 [gpu_model_runner.py:3020] Capturing CUDA graphs
Capturing:   0%|          | 0/3\rCapturing:  33%|###       | 1/3

"""


@pytest.mark.parametrize(
    "text, message",
    [
        (TRITON, "RuntimeError: Triton Error [CUDA]: device-side assert triggered"),
        (ILLEGAL, "RuntimeError: CUDA error: an illegal memory access was encountered"),
        (CPP, "CUDA error: an illegal memory access was encountered"),
        (NO_GPU, "ValueError: No available memory for the cache blocks."),
        (TWO, "torch.AcceleratorError: CUDA error: the second"),
        (KILLED, "Capturing:  33%|###       | 1/3"),
        ("RuntimeError: Engine core initialization failed. See root cause above.", None),
        ("ValueError: a\nTypeError: b\nsome last words", "TypeError: b"),
        ("AssertionError\nValueError: c", "AssertionError"),
    ],
)
def test_the_most_telling_line(text, message):
    log = Log()
    for line in text.split("\n"):
        log.add(line)
    assert log.message() == (message or text)


def test_a_log_without_a_word():
    assert Log().message() is None


def test_lines_are_cut_wherever_chunks_end():
    text = "one\n\ntwo três\r\nfour"
    for size in range(1, len(text)):
        lines, data = Lines(100), text.encode()
        heard = [line for at in range(0, len(data), size) for line in lines.feed(data[at : at + size])]
        assert [*heard, *lines.rest()] == ["one", "", "two três\r", "four"]


def test_lines_keep_what_fits():
    lines = Lines(4)
    assert lines.feed(b"abc") == [] and lines.feed(b"defg") == []
    assert lines.feed(b"h\nxy\n") == ["abcd", "xy"]
