"""A notebook's kernel as a fork of a process that has imported what notebooks import."""

import gc
import multiprocessing
import os
import runpy
import sys

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        *("ipykernel.kernelapp", "mrv2lab.cases", "mrv2lab.mystery", "mrv2lab.plots", "mrv2lab.widgets"),
        "torch.fx.experimental.symbolic_shapes",  # by the first matmul under the emulator; most of a second
    ]
)


class ForkedKernel:
    """As much of `subprocess.Popen` as `jupyter_client` asks for, of `python -m ipykernel_launcher ...`."""

    stdin = stdout = stderr = None

    def __init__(self, command, env, cwd, **unused):
        begins, began = _FORKS.Pipe(duplex=False)
        given = {"arguments": command[2:], "environment": env, "folder": cwd, "began": began}
        self._process = _FORKS.Process(target=runpy.run_path, args=(__file__, given, "__main__"))
        self._process.start()
        began.close()
        begins.recv()
        self.pid = self._process.pid

    def poll(self):
        return self._process.exitcode

    def wait(self):
        self._process.join()

    def send_signal(self, number):
        os.kill(self.pid, number)


def be_the_kernel(arguments, environment, folder, began):
    os.setsid()  # who ends a kernel ends its process group
    began.send(None)
    gc.freeze()  # garbage is collected more seldom, and not among all that was imported
    gc.set_threshold(100_000, 20, 100)
    os.environ.update(environment | {"JPY_PARENT_PID": str(os.getppid())})  # what imports have set stays
    os.chdir(folder)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    be_the_kernel(*(globals()[name] for name in ("arguments", "environment", "folder", "began")))
