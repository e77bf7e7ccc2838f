"""Builds the native dispatcher while the program runs."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable

from tritongemm import settings
from tritongemm.native.compiler import compiler_path, failure

log = logging.getLogger("tritongemm")

#: The builder finds the same packages as this process, whatever its working folder.
_BUILDER = ("import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
            "from tritongemm.native import build; build()")
_lock = threading.Lock()
_begun = False


def build_once(ready: Callable[[], None]) -> None:
    """Begins to build, once a process, unless there is no compiler or a build failed before.

    The builder is a process of its own at a low priority. It goes on where this process ends
    before it, so that the next one finds the library. Processes that begin at the same time build
    one library: see :func:`tritongemm.native.compiler.build`.

    Args:
        ready: called by another thread once the library is there.
    """
    global _begun
    with _lock:
        if _begun:
            return
        _begun = True
    if not sys.executable or compiler_path() is None:
        return
    if (reason := failure()) is not None:
        log.info("tritongemm: the native dispatcher is not built, since an earlier build failed; "
                 "`tritongemm native` tries again: %s", reason)
        return
    nice = shutil.which("nice")
    # -I: without the working folder on the path, in which others may have put a module.
    words = [*([nice, "-n", "10"] if nice else []), sys.executable, "-I", "-c", _BUILDER,
             json.dumps([path for path in sys.path if isinstance(path, str)])]
    environment = settings.child_environment(
        TRITONGEMM_CACHE_DIR=str(settings.cache_root()), TRITONGEMM_NATIVE="0",
        CUDA_VISIBLE_DEVICES="")
    try:
        builder = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   start_new_session=True)
    except OSError as error:
        log.info("tritongemm: the native dispatcher cannot be built: %s", error)
        return
    log.info("tritongemm: building the native dispatcher in the background (%s)",
             settings.cache_root())

    def wait() -> None:
        if builder.wait() == 0:
            ready()
        else:
            log.info("tritongemm: the native dispatcher was not built; `tritongemm native` says "
                     "why")

    threading.Thread(target=wait, name="tritongemm-native-build", daemon=True).start()


def _after_fork() -> None:
    """A child has not the thread that waits: it begins again, and its builder waits for the first
    one's library."""
    global _lock, _begun
    _lock, _begun = threading.Lock(), False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
