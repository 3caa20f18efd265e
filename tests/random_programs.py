"""Random programs by the thousand, for a record: `python -m tests.random_programs FILE [NUM]`.

On a GPU each program has to end as under the emulator, without one as it runs eagerly. Then audits of a tenth
as many, a thousand at most: nothing may be found in a right one, and a fault that is put in has to come
first. Programs that did not end as they should are printed with their seeds, and the status is 1.
"""

import json
import os
import sys
import warnings
from collections import Counter
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch

from mrv2lab import results
from tests.audit import test_random
from tests.graphs import test_fuzz

BACKEND = "cuda" if torch.cuda.is_available() else "emulated"
KINDS = {"one graph": test_fuzz.outcome, "graphs that share buffers and a pool": test_fuzz.outcome_of_several}
AS_IT_SHOULD = {
    "": "as under the emulator", "another": "as torch refuses on a GPU", "equal": "as eagerly",
    "refused": "refused at capture", "none": "nothing found", "the fault first": "the fault first",
}  # fmt: skip


def program(kind, seed):
    warnings.simplefilter("ignore")
    if BACKEND == "cuda":
        return test_fuzz.difference(KINDS[kind], seed)
    return test_fuzz.ended(KINDS[kind], seed, BACKEND)[0]


def audited(fault, seed):
    warnings.simplefilter("ignore")
    found = test_random.outcome(seed, fault, BACKEND)
    if fault and found != "refused":
        return "the fault first" if found == (fault, test_random.FAULTS[fault]) else f"missed: {found}"
    return str(found)


def asked(num):
    """What is asked, and how often."""
    for kind in KINDS:
        yield f"programs of {kind}", partial(program, kind), num // 2
    for fault in (None, *test_random.FAULTS):
        what = f"with one {fault} put in" if fault else "that are right"
        yield f"audits of programs {what}", partial(audited, fault), min(num // 10, 1000)


def main(file, num=2000):
    rows, bad = [], 0
    with get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        for what, ask, number in asked(int(num)):
            words = pool.map(ask, range(number), chunksize=10)
            ended = Counter(AS_IT_SHOULD.get(word, "otherwise") for word in words)
            wrong = [(seed, word) for seed, word in enumerate(words) if word not in AS_IT_SHOULD]
            print(what, dict(ended), *wrong, sep="\n  ")
            rows.append({"work": what, "times": number, "ended": dict(ended)})
            bad += len(wrong)
    made = results.provenance(0, uses_gpu=BACKEND == "cuda").model_dump(
        mode="json", exclude={"sources", "seconds"}
    )
    Path(file).write_text(json.dumps({"provenance": made | {"command": "make fuzz"}, "rows": rows}, indent=1))
    return bad > 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
