"""Programs are a module of this folder, which is no package."""

import importlib.util
import sys
from pathlib import Path

spec = importlib.util.spec_from_file_location("audit_programs", Path(__file__).with_name("programs.py"))
sys.modules["audit_programs"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["audit_programs"])
