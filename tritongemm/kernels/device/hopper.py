"""What differs between Triton versions in Gluon's interface to the GPU, in one place.

3.6 and 3.7 store by ``tma.async_copy_shared_to_global`` and load by
``tma.async_copy_global_to_shared``; later versions name them ``async_store`` and ``async_load``
and keep the old names only to raise an error. 3.9 does so with ``cp.async`` too, whose copies
are ``async_copy.async_load`` from 3.8 on. 3.7 has ``barrier`` where 3.6 has
``thread_barrier``. 3.9 names a buffer's ``_reinterpret`` without the underscore.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

copy_async = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
tma_store_wait = tma.store_wait
thread_barrier = getattr(gl, "barrier", None) or gl.thread_barrier

if hasattr(gl.shared_memory_descriptor, "reinterpret"):
    @gluon.jit
    def matrix_of(buffer, OUTER: gl.constexpr, INNER: gl.constexpr):
        """A [1, OUTER, INNER] buffer as [OUTER, INNER]."""
        layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([OUTER, INNER], buffer.dtype)
        return buffer.reinterpret(buffer.dtype, [OUTER, INNER], layout)
else:
    @gluon.jit
    def matrix_of(buffer, OUTER: gl.constexpr, INNER: gl.constexpr):
        """A [1, OUTER, INNER] buffer as [OUTER, INNER]."""
        layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([OUTER, INNER], buffer.dtype)
        return buffer._reinterpret(buffer.dtype, [OUTER, INNER], layout)


@gluon.jit
def shared_address(offset):
    """The address ``offset`` bytes into the program's shared memory.

    Gluon does not give addresses of buffers. Code that needs one uses the first buffer in shared
    memory, which is the largest (Triton's allocator). A binary in which something else lies there
    is refused (``Launch.first_shared``). Without a space after the comma this instruction differs
    from the compiler's own, whose offsets are those of other buffers
    (``compile.shared_offsets``).
    """
    return offset + gl.inline_asm_elementwise("mov.u32 $0,global_smem;", "=r", [], dtype=gl.int32,
                                              is_pure=True, pack=1)


__all__ = ["copy_async", "fence_async_shared", "matrix_of", "mbarrier", "shared_address",
           "thread_barrier", "tma_load", "tma_store", "tma_store_wait", "warpgroup_mma",
           "warpgroup_mma_wait"]
