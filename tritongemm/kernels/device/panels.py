"""C through shared memory in panels of any width, where the operands share one buffer.

Gluon's tensors have powers of two for sides, so a tile of 120 columns would leave in fifteen boxes
of eight. Here each warp writes the eight or sixteen columns that it has finished by ``stmatrix`` to
their place in a panel (PTX ISA, stmatrix), and the copy engine stores a panel as one box, whose
width is that of the tensor map and not of the parameter's type (``Descriptor.loaded``).

Rows of a panel are whole sectors of memory where the tile's are: stored 80 bytes at a time, tiles
of 160 columns took up to 8 % longer than 160 at a time. Those that a warp writes at once lie in
different banks, or two in one, where a panel is 64 columns wide and swizzled or an odd number of
times 8 or 16; four in one where it is 32. A turned tile has the columns of its accumulator as rows,
each the 64 of a consumer, swizzled.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device.hopper import fence_async_shared, shared_address, thread_barrier


@gluon.constexpr_function
def _put(columns, start, panel, turned):
    """Two registers of each eight of these columns; ``start``: the first one's place in the
    panel."""
    registers = columns // 4
    place = f"${2 * registers}"
    # Eight lanes name the lines of eight by eight values; of the accumulator's sixteen rows the
    # second eight are lanes 8 to 15 and 24 to 31, of sixteen columns lanes 16 to 31.
    lines = ["{", ".reg .b32 thread, line, eight_rows, eight_columns, at;",
             "mov.u32 thread, %tid.x;", "and.b32 line, thread, 7;",
             "bfe.u32 eight_columns, thread, 4, 1;",
             "bfe.u32 at, thread, 3, 1;", "bfe.u32 eight_rows, thread, 5, 2;",
             "mad.lo.u32 eight_rows, eight_rows, 2, at;"]
    if turned:
        lines += ["xor.b32 eight_rows, eight_rows, line;",
                  "mad.lo.u32 at, eight_columns, 8, line;", f"mad.lo.u32 at, at, 128, {place};",
                  "mad.lo.u32 at, eight_rows, 16, at;", f"add.u32 at, at, {128 * start};"]
    else:
        lines += ["mad.lo.u32 at, eight_rows, 8, line;",
                  f"mad.lo.u32 at, at, {2 * panel}, {place};",
                  f"add.u32 eight_columns, eight_columns, {start // 8};"]
        if panel == 64:
            lines.append("xor.b32 eight_columns, eight_columns, line;")
        lines.append("mad.lo.u32 at, eight_columns, 16, at;")
    values = ", ".join(f"${registers + i}" for i in range(registers))
    trans = ".trans" if turned else ""
    return "\n".join([*lines, f"stmatrix.sync.aligned.m8n8.x{registers}{trans}.shared.b16 "
                      f"[at], {{{values}}};", "}", *(f"// ${i}" for i in range(registers))])


@gluon.constexpr_function
def _put_registers(columns):
    registers = columns // 4
    return ",".join(["=r"] * registers + ["r"] * registers + ["r"] * (2 * registers))


@gluon.constexpr_function
def _store(rank, panel, turned, streams):
    batch = ", $5" if rank == 3 else ""
    hint, policy = (".L2::cache_hint", ", policy") if streams else ("", "")
    lines = ["{", ".reg .pred p, first;", ".reg .b32 warp, row, at;", "mov.u32 warp, %tid.x;",
             "bfe.u32 warp, warp, 5, 2;"]
    if streams:  # evict_first, of all of it (CUTLASS, TMA::CacheHintSm90)
        lines += [".reg .b64 policy;", "mov.b64 policy, 0x12F0000000000000;"]
    if turned:  # the first warp stores what all have put
        lines += ["setp.eq.u32 first, warp, 0;", "mov.b32 row, $4;", "mov.b32 at, $1;"]
    else:  # each its sixteen rows
        lines += ["setp.eq.u32 first, 1, 1;", "mad.lo.u32 row, warp, 16, $4;",
                  f"mad.lo.u32 at, warp, {32 * panel}, $1;"]
    return "\n".join([*lines, "bar.warp.sync -1;", "elect.sync _|p, -1;", "and.pred p, p, first;",
                      f"@p cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group{hint} "
                      f"[$2, {{$3, row{batch}}}], [at]{policy};",
                      "@p cp.async.bulk.commit_group;", "}", "// $0"])


@gluon.constexpr_function
def _wait(panels):
    return f"cp.async.bulk.wait_group.read {panels}; bar.warp.sync -1; // $0"


@gluon.constexpr_function
def place_of(columns, S):
    """The byte, in a consumer's panels, of the one that these columns, as one row, are in."""
    panel = columns // S.panel.value
    return 128 * S.panel.value * (panel if S.subtile.value == 1 else panel % S.places.value)


@gluon.jit
def free(PANEL: gl.constexpr, S: gl.constexpr):
    """Waits until the place of a tile's panel with this number is free: the copy engine has read
    what this warp has stored, and where tiles are turned this consumer. The first panel waits for
    all of the tile before, so for the other places too."""
    if PANEL == 0 or (S.subtile > 1 and PANEL >= S.places):
        gl.inline_asm_elementwise(_wait(0 if PANEL == 0 else S.places - 1), "=r", [],
                                  dtype=gl.int32, is_pure=False, pack=1)
        if S.turned:
            thread_barrier()


@gluon.jit
def put(value, place, START: gl.constexpr, COLUMNS: gl.constexpr, S: gl.constexpr):
    """Writes finished COLUMNS, 8 or 16 of the accumulator's, into the panel at byte ``place``, of
    which they are the columns (the rows, where tiles are turned) from START."""
    gl.inline_asm_elementwise(
        _put(COLUMNS, START, S.panel, S.turned), _put_registers(COLUMNS),
        (value, shared_address(place)), dtype=value.dtype, is_pure=False, pack=COLUMNS // 2)


@gluon.jit
def store(map_, place, batch, row, col, S: gl.constexpr):
    """Starts the copy of the panel at byte ``place`` to (batch, row, col) of C: each warp of its
    rows, or, where tiles are turned, the first of all once every warp has put its columns. Several
    small boxes are stored faster than a large one."""
    fence_async_shared()
    if S.turned:
        thread_barrier()
    if S.batched:
        gl.inline_asm_elementwise(
            _store(3, S.panel, S.turned, S.streams), "=r,r,l,r,r,r",
            (shared_address(place), map_, col, row, batch), dtype=gl.int32, is_pure=False, pack=1)
    else:
        gl.inline_asm_elementwise(
            _store(2, S.panel, S.turned, S.streams), "=r,r,l,r,r",
            (shared_address(place), map_, col, row), dtype=gl.int32, is_pure=False, pack=1)
