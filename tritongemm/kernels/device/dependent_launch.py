"""Programmatic dependent launch (sm_90 and later): a kernel starts under its predecessor's tail.

A kernel launched so may start before the one in front of it in the stream has ended, and must
wait for it before it touches memory; ``wait`` returns once that one is complete and what it wrote
is visible. Every kernel of this package waits first of all, so "complete" goes back through the
whole stream. Between launches this hides the latency of a launch and of the set-up.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_predecessor():
    """Waits, then lets the next kernel start its own set-up. For ``tl`` kernels."""
    gdc_wait()
    gdc_launch_dependents()


@gluon.jit
def wait_for_predecessor_gluon():
    """The same for Gluon kernels."""
    gl.inline_asm_elementwise("griddepcontrol.wait; // dummy $0", "=r", [], dtype=gl.int32,
                              is_pure=False, pack=1)
    gl.inline_asm_elementwise("griddepcontrol.launch_dependents; // dummy $0", "=r", [],
                              dtype=gl.int32, is_pure=False, pack=1)
