"""One option beside what setup.cfg says: a wheel with the native dispatcher built into it.

``pip install . --no-build-isolation -C--build-option=--native`` needs torch and a C++ compiler in
the environment. Where the library cannot be built, the wheel is the pure one, with a warning.
"""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel


class Wheel(bdist_wheel):
    """``bdist_wheel`` with ``--native``."""

    user_options = [*bdist_wheel.user_options,
                    ("native", None, "build the native dispatcher for the installed torch into it")]
    boolean_options = [*bdist_wheel.boolean_options, "native"]

    def initialize_options(self) -> None:
        super().initialize_options()
        self.native = False

    def run(self) -> None:
        super().run()
        if not self.native:
            return
        sys.path.insert(0, str(Path(__file__).resolve().parent))
        try:
            from tritongemm.errors import TritonGemmError
            from tritongemm.native import build
            from tritongemm.native.wheels import add, check
        except ImportError as error:
            self.warn(f"the native dispatcher is not built into the wheel: {error}")
            return
        pure = Path(self.distribution.dist_files[-1][2])  # what super().run() has made
        try:
            check(pure)  # before 20 s of compiling: --python-tag and others name it otherwise
            add(pure, build(), pure.parent)
        except (TritonGemmError, ImportError, OSError) as error:  # torch is imported in build()
            self.warn(f"the native dispatcher is not built into the wheel: {error}")
        else:
            pure.unlink()


setup(cmdclass={"bdist_wheel": Wheel})
