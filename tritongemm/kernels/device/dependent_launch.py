"""Programmatic dependent launch (sm_90 and later): a kernel starts under its predecessor's tail.

A kernel launched so may start before the one in front of it in the stream has ended, and must
wait for it before it touches memory: ``wait`` returns once that one is complete and what it wrote
is visible. Every kernel of this package waits, with all threads that touch memory, so "complete"
goes back through the whole stream. Before that it may only ask the L2 for what it will load
(``prefetch``). ``release`` lets the next kernel start its own set-up; it is called once a program's
last loads are under way, because a waiting kernel takes room on the SMs.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents as release
from triton.language.extra.cuda import gdc_wait as wait


@gluon.jit
def gluon_wait():
    """``wait`` for Gluon kernels."""
    gl.inline_asm_elementwise("griddepcontrol.wait; // dummy $0", "=r", [], dtype=gl.int32,
                              is_pure=False, pack=1)


@gluon.jit
def gluon_release():
    """``release`` for Gluon kernels."""
    gl.inline_asm_elementwise("griddepcontrol.launch_dependents; // dummy $0", "=r", [],
                              dtype=gl.int32, is_pure=False, pack=1)


__all__ = ["gluon_release", "gluon_wait", "release", "wait"]
