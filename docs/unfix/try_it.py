"""Take the fix of vLLM #43314 out of vLLM 0.23.0 and ask the test beside this file. Needs no GPU."""

import subprocess
import sys
from pathlib import Path

from mrv2lab.upstream.process import environment

command = [sys.executable, "-m", "mrv2lab", "unfix"]
command += ["vllm.v1.worker.gpu.model_runner:GPUModelRunner.execute_model"]
command += ["--find", "for punica_wrapper in _: ...", "--versions", "==0.23.0", "test_lora.py"]
sys.exit(subprocess.run(command, env=environment("0.23.0"), cwd=Path(__file__).parent).returncode)
