"""`python -P warm_release.py SOCKET`: imports what releases of vLLM import, then runs Python in its forks.

A request is a line of JSON, what Python would be given: `arguments` (`-m MODULE ...` or `-c CODE ...`),
`environment`, and the files `stdout` and `stderr`. The answer is the exit status, or nothing from a fork that
was ended. With `imports` and `address` in place of `arguments` the fork imports these modules of the release
that PYTHONPATH leads to, answers, and is a server like this one from then on. `conftest.WarmReleases` asks.
"""

import gc
import json
import os
import runpy
import socket
import socketserver
import sys
import tempfile
import traceback
from importlib import import_module
from importlib.util import find_spec

from mrv2lab.upstream import platform

OTHERS = (  # four of five seconds that a release takes to be imported
    *("torch._inductor.lowering", "torch._inductor.compile_fx", "openai.types.responses", "aiohttp"),
    *("transformers.models.auto.image_processing_auto", "fastapi", "xgrammar", "openai_harmony"),
)
VARIABLE = "VLLM_USE_BREAKABLE_CUDAGRAPH"
"""Read when a function is decorated: who sets it takes a server that has imported nothing decorated."""
DECORATED = "vllm.v1.worker.gpu.model_runner"  # imports what is


class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    def __init__(self, address):
        self.parent = os.getppid()
        super().__init__(address, Fork)

    def service_actions(self):
        super().service_actions()
        if os.getppid() != self.parent:  # nobody is left to ask
            os._exit(1)


class Fork(socketserver.StreamRequestHandler):
    def handle(self):
        asked = json.loads(self.rfile.readline())
        os.environ.clear()
        os.environ.update(asked["environment"])
        tempfile.tempdir = None  # of another environment
        if "imports" in asked:
            self.server.socket.close()
            import_release(asked["imports"])
            server = Server(asked["address"])
            self.wfile.write(b"0")
            self.connection.shutdown(socket.SHUT_RDWR)
            server.serve_forever()
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(asked[name], os.O_WRONLY), number)
        too_late = DECORATED in sys.modules
        status = run(*asked["arguments"])
        if too_late and VARIABLE in os.environ:
            status = f"{VARIABLE} was set after its decorators had been imported: see `SET_IT`"
        sys.stdout.flush()
        sys.stderr.flush()
        self.wfile.write(str(status).encode())


def import_release(names):
    gc.disable()
    if "vllm" not in sys.modules:
        sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
        platform.apply()
        platform.apply = lambda: None  # for what runs in a fork
    for name in names:
        if find_spec(name):
            import_module(name)
    be_still()


def be_still():
    """Each capture collects garbage: not through all that was imported, in each fork."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    gc.enable()


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
    for name in OTHERS:
        import_module(name)
    gc.unfreeze = lambda: None  # vLLM's captures do that
    be_still()
    server = Server(sys.argv[1])
    print("ready", flush=True)
    server.serve_forever()
