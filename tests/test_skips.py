"""Only listed reasons skip a test; another skip, and a missing test dependency, fail the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from skips import allowed

HERE = Path(__file__).resolve().parent
FILES = {
    "test_allowed.py": "import pytest\ndef test_a(): pytest.skip('needs sm_90')\n",
    "test_other.py": "import pytest\ndef test_b(): pytest.skip('not today')\n"
                     "@pytest.mark.skip(reason='nor tomorrow')\ndef test_c(): pass\n"
                     "@pytest.mark.xfail(reason='known')\ndef test_d(): assert False\n",
    "test_missing.py": "import pytest\npytest.importorskip('no_such_module')\n"
                       "def test_e(): pass\n",
}


@pytest.mark.parametrize(("reason", "place", "expected"), [
    ("needs a CUDA device: torch sees none", "tests/gpu/test_kernels.py", True),
    ("needs a CUDA device: torch cannot be imported (no)", "tests/bench/test_x.py", False),
    ("could not import 'expecttest': No module named 'expecttest'", "tests/x.py", False),
    ("could not import 'expecttest': No module named 'expecttest'", "tests/gpu/x.py", False),
    ("block_n=24 is not a power of two", "tests/gpu/test_epilogues_on_a_gpu.py", True),
    ("block_n=24 is not a power of two", "tests/kernels/test_launch.py", False),
    ("the interpreter of Triton 3.6.0 does not work with numpy 2.4.1; it needs numpy < 2.4",
     "tests/interpreter/test_matmul.py", True),
    ("triton is not installed", "tests/interpreter/test_matmul.py", False)])
def test_listed_reasons_are_allowed(reason, place, expected):
    assert allowed(reason, place) is expected


def test_other_skips_fail_the_run(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(HERE)!r})\n"
        "from conftest_of_the_tests import *\n")
    (tmp_path / "conftest_of_the_tests.py").write_text((HERE / "conftest.py").read_text())
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null",
         "--continue-on-collection-errors", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=HERE.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 skipped, 1 xfailed, 2 errors" in done.stdout, done.stdout
    for reason in ("not today", "nor tomorrow", "could not import 'no_such_module'"):
        assert f"tests/skips.py does not allow: {reason}" in done.stdout
