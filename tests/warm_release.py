"""`python -P warm_release.py SOCKET`: imports much of a release of vLLM, then runs Python in forks of itself.

A request is a line of JSON, what Python would be given: `arguments` (`-m MODULE ...` or `-c CODE ...`),
`environment`, and the files `stdout` and `stderr`. The answer is the exit status, or nothing from a fork that
was ended. `conftest.WarmReleases` asks.
"""

import gc
import json
import os
import runpy
import socketserver
import sys
import traceback
from importlib import import_module
from importlib.util import find_spec

from mrv2lab.upstream import platform

BREAKS = "vllm.compilation.breakable_cudagraph"
"""Its decorator reads the environment, of which each fork has its own: nothing decorated comes before.
A release without it is imported as far as all probes import it."""
BEFORE = ("transformers", "vllm.config", "vllm.forward_context", "vllm.v1.request", "vllm.v1.outputs")
UNDECORATED = "vllm.v1.worker.gpu.model_runner"


class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    parent = os.getppid()

    def service_actions(self):
        super().service_actions()
        if os.getppid() != self.parent:  # nobody is left to ask
            os._exit(1)


class Fork(socketserver.StreamRequestHandler):
    def handle(self):
        asked = json.loads(self.rfile.readline())
        os.environ.clear()
        os.environ.update(asked["environment"])
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(asked[name], os.O_WRONLY), number)
        status = run(*asked["arguments"])
        sys.stdout.flush()
        sys.stderr.flush()
        self.wfile.write(str(status).encode())


def run(kind, what, *arguments):
    """Exit status of `python KIND WHAT ARGUMENTS`."""
    sys.argv = [what, *arguments]
    try:
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(what, {"__name__": "__main__"})
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    gc.disable()
    platform.apply()
    platform.apply = lambda: None  # for what runs in a fork
    for name in BEFORE:
        import_module(name)
    assert BREAKS not in sys.modules
    if not find_spec(BREAKS):
        import_module(UNDECORATED)
    gc.freeze()  # each capture collects: not through all of this, in each fork
    gc.set_threshold(100_000, 20, 100)
    gc.enable()
    server = Server(sys.argv[1], Fork)
    print("ready", flush=True)
    server.serve_forever()
