"""Programs are modules of this folder, which is no package."""

import importlib.util
import sys
from pathlib import Path

FILES = {
    "audit_programs": "programs.py",
    "op_programs": "op_programs.py",
    "half_precision": "half_precision.py",
}
for name, file in FILES.items():
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(file))
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
