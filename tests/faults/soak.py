"""The same again and again in one process: what it holds must not grow. On the best executor here.

`python tests/faults/soak.py FILE [SHARE]`: FILE gets the record; SHARE of the counts are run, by default 1.
Each kind of work has a process of its own; without a GPU, whose memory they would share, all run at once.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import torch

from mrv2lab import graphs, results
from mrv2lab.audit import audit
from mrv2lab.cases import CASES
from mrv2lab.graphs import capture
from mrv2lab.widgets import FixPanel

BACKEND = graphs.resolve("auto")
DEVICE = "cuda" if BACKEND == "cuda" else "cpu"
CHECKS = 10  # looks at what is held; growth is counted from the middle one on


def toggle():
    """Two toggles of a panel: verdict, plot and kernels are drawn anew."""
    for variant in ("zero_mapping", "forced_launch"):
        PANEL.switch.value = variant
        assert "data-verdict" in PANEL.verdict.value


def run_case():
    """A case's run: nine steps, replayed."""
    [run] = CASES["lora_short_circuit"].run_all(
        ["zero_mapping"], rung=BACKEND, num_layers=1, num_steps=9, batch_size=1
    )
    assert run.verdict == "wrong"


def audit_step():
    """An audit that finds a frozen number."""
    static, numbers = torch.ones(8, device=DEVICE), [2]

    def vary():
        static.add_(1)
        numbers[0] += 1

    report = audit(lambda: static * numbers[0], vary=vary, backend=BACKEND)
    assert [finding.kind for finding in report.findings] == ["frozen-host-value"]


def capture_and_replay():
    """A capture and its replay."""
    static = torch.ones(1024, device=DEVICE)
    graph = capture(lambda: static * 2 + 1, backend=BACKEND)
    graph.replay()


PANEL = FixPanel(CASES["lora_short_circuit"], {"batch_size": [1, 2]}, rung=BACKEND)
WORK = {"toggle": 500, "run_case": 500, "audit_step": 500, "capture_and_replay": 200}


def held():
    """Bytes and numbers that this process and those below it hold."""
    gc.collect()
    me = psutil.Process()
    found = {
        # What is written and nobody's else. Pages of libraries become this process's own when others end.
        "memory": sum(part.private_dirty for part in me.memory_maps(grouped=False)),
        "threads": threading.active_count(),
        "processes": len(me.children(recursive=True)),
        "files and sockets": me.num_fds(),
        "temporary files": len([*Path(tempfile.gettempdir()).iterdir()]),
    }
    if BACKEND == "cuda":
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        found |= {"device memory": total - free, "allocated device memory": torch.cuda.memory_allocated()}
    return found


def soak(work, times):
    start, looks = time.monotonic(), []
    for number in range(times):
        work()
        if (number + 1) * CHECKS // times > number * CHECKS // times:
            looks.append(held())
    early, late = looks[CHECKS // 2 - 1], looks[-1]
    memory = [name for name in late if "memory" in name]
    growth = {name: round(late[name] / (early[name] or 1) - bool(early[name]), 4) for name in memory}
    left = {name: late[name] - early[name] for name in late if name not in memory}
    seconds = round(time.monotonic() - start)
    row = {"work": work.__doc__, "times": times, "seconds": seconds, "growth": growth, "left": left}
    assert max(growth.values()) < 0.05 and max(left.values()) <= 0, looks
    return row


def main(file, share):
    """Run all kinds of work, each in a process that is given a folder for what is temporary."""
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for name in WORK:
            own = Path(folder, name)
            own.mkdir()
            command = [sys.executable, __file__, "--work", name, str(share)]
            environment = os.environ | {"TMPDIR": str(own)}
            processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
            if BACKEND == "cuda":
                processes[-1].wait()
        told = [process.communicate()[0] for process in processes]
    print(*told, sep="")
    if any(process.returncode for process in processes):
        sys.exit("something grows, or has failed: see above")
    made = results.provenance(0, uses_gpu=BACKEND == "cuda").model_dump(
        mode="json", exclude={"sources", "seconds"}
    )
    made["command"] = "make soak"
    rows = [json.loads(text.splitlines()[-1]) for text in told]
    Path(file).write_text(json.dumps({"provenance": made, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "--work":
        name, share = sys.argv[2:]
        print(json.dumps(soak(globals()[name], max(CHECKS, int(WORK[name] * float(share))))))
    else:
        main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else 1)
