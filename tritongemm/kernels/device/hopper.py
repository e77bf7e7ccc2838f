"""What differs between Triton versions in Gluon's Hopper interface, in one place.

3.6 and 3.7 store by ``tma.async_copy_shared_to_global`` and load by
``tma.async_copy_global_to_shared``; later versions name them ``async_store`` and ``async_load``.
"""

from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

tma_load = getattr(tma, "async_copy_global_to_shared", None) or tma.async_load
tma_store = getattr(tma, "async_copy_shared_to_global", None) or tma.async_store
tma_store_wait = tma.store_wait

__all__ = ["fence_async_shared", "mbarrier", "tma_load", "tma_store", "tma_store_wait",
           "warpgroup_mma", "warpgroup_mma_wait"]
