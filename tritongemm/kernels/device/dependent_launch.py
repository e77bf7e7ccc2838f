"""Programmatic dependent launch (sm_90 and later): a kernel starts under its predecessor's tail.

A kernel launched so may start before its predecessor in the stream has ended, and must wait for it
before it touches memory: ``wait`` returns once the predecessor is complete and its writes are
visible. Every kernel of this package waits, with all threads that touch memory, so "complete" holds
for the whole stream before it. Until then a kernel may only prefetch into the L2 (``prefetch``).
``release`` lets the next kernel start its own set-up; it is called once a program's last loads are
under way, because a waiting kernel occupies SMs.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents as release
from triton.language.extra.cuda import gdc_wait as wait

_WAIT_AFTER = tl.constexpr(
    "{ .reg .pred known; setp.ne.s32 known, $1, -1; @known griddepcontrol.wait; } // $0")


@triton.jit
def wait_after(number):
    """``wait``, once a ``number`` that is never -1 is known. ptxas moves computations that the wait
    does not depend on behind it, where nothing hides them."""
    tl.inline_asm_elementwise(_WAIT_AFTER, "=r,r", [number], dtype=tl.int32, is_pure=False, pack=1)


@gluon.jit
def gluon_wait():
    """``wait`` for Gluon kernels."""
    gl.inline_asm_elementwise("griddepcontrol.wait; // dummy $0", "=r", [], dtype=gl.int32,
                              is_pure=False, pack=1)


@gluon.jit
def gluon_wait_after(number):
    """``wait_after`` for Gluon kernels; of a tensor, one number a thread."""
    gl.inline_asm_elementwise(_WAIT_AFTER, "=r,r", [number], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def gluon_release():
    """``release`` for Gluon kernels."""
    gl.inline_asm_elementwise("griddepcontrol.launch_dependents; // dummy $0", "=r", [],
                              dtype=gl.int32, is_pure=False, pack=1)


__all__ = ["gluon_release", "gluon_wait", "gluon_wait_after", "release", "wait", "wait_after"]
