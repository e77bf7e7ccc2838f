"""The fakes of the sweep and of the bench are imported by name, by child processes too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / name) for name in ("tuning", "bench")]
