"""C through shared memory in epilogue tiles of any width, where the operands share one buffer.

Gluon's tensors have powers of two for sides, so a tile of 120 columns would be stored in fifteen
boxes of eight. Here each warp writes a fragment of eight or sixteen finished columns into a store
buffer by ``stmatrix`` (PTX ISA, stmatrix), and TMA stores an epilogue tile, EPILOGUE_N
columns, as one box, whose width is that of the tensor map and not of the parameter's type
(``Descriptor.loaded``).

Rows of an epilogue tile are whole sectors of memory where the tile's are: in rows of 80 bytes,
tiles of 160 columns took up to 8 % longer than with rows of 160. Rows that a warp writes at once
fall into different banks, or two into one, where an epilogue tile is 64 columns wide and swizzled,
or an odd multiple of 8 or 16; four into one where it is 32 wide. A transposed tile has the columns
of its accumulator as rows, each the 64 rows of a consumer, swizzled.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device.hopper import fence_async_shared, shared_address, thread_barrier
from tritongemm.kernels.device.operand_types import gluon_require_type


@gluon.constexpr_function
def _write(columns, start, epilogue_n, transposed):
    """Two registers of each eight of these columns, which begin at column ``start`` of the epilogue
    tile."""
    registers = columns // 4
    buffer = f"${2 * registers}"
    # Eight lanes hold the row addresses of eight by eight values; the accumulator's second eight
    # rows are lanes 8 to 15 and 24 to 31, its second eight columns lanes 16 to 31.
    lines = ["{", ".reg .b32 thread, line, eight_rows, eight_columns, at;",
             "mov.u32 thread, %tid.x;", "and.b32 line, thread, 7;",
             "bfe.u32 eight_columns, thread, 4, 1;",
             "bfe.u32 at, thread, 3, 1;", "bfe.u32 eight_rows, thread, 5, 2;",
             "mad.lo.u32 eight_rows, eight_rows, 2, at;"]
    if transposed:
        lines += ["xor.b32 eight_rows, eight_rows, line;",
                  "mad.lo.u32 at, eight_columns, 8, line;", f"mad.lo.u32 at, at, 128, {buffer};",
                  "mad.lo.u32 at, eight_rows, 16, at;", f"add.u32 at, at, {128 * start};"]
    else:
        lines += ["mad.lo.u32 at, eight_rows, 8, line;",
                  f"mad.lo.u32 at, at, {2 * epilogue_n}, {buffer};",
                  f"add.u32 eight_columns, eight_columns, {start // 8};"]
        if epilogue_n == 64:
            lines.append("xor.b32 eight_columns, eight_columns, line;")
        lines.append("mad.lo.u32 at, eight_columns, 16, at;")
    values = ", ".join(f"${registers + i}" for i in range(registers))
    trans = ".trans" if transposed else ""
    return "\n".join([*lines, f"stmatrix.sync.aligned.m8n8.x{registers}{trans}.shared.b16 "
                      f"[at], {{{values}}};", "}", *(f"// ${i}" for i in range(registers))])


@gluon.constexpr_function
def _write_registers(columns):
    registers = columns // 4
    return ",".join(["=r"] * registers + ["r"] * registers + ["r"] * (2 * registers))


@gluon.constexpr_function
def _store(rank, epilogue_n, transposed, evict_first):
    batch = ", $5" if rank == 3 else ""
    hint, policy = (".L2::cache_hint", ", policy") if evict_first else ("", "")
    lines = ["{", ".reg .pred p, first;", ".reg .b32 warp, row, at;", "mov.u32 warp, %tid.x;",
             "bfe.u32 warp, warp, 5, 2;"]
    if evict_first:  # the policy of CUTLASS, TMA::CacheHintSm90::EVICT_FIRST
        lines += [".reg .b64 policy;", "mov.b64 policy, 0x12F0000000000000;"]
    if transposed:  # the first warp stores for all
        lines += ["setp.eq.u32 first, warp, 0;", "mov.b32 row, $4;", "mov.b32 at, $1;"]
    else:  # each warp its sixteen rows
        lines += ["setp.eq.u32 first, 1, 1;", "mad.lo.u32 row, warp, 16, $4;",
                  f"mad.lo.u32 at, warp, {32 * epilogue_n}, $1;"]
    return "\n".join([*lines, "bar.warp.sync -1;", "elect.sync _|p, -1;", "and.pred p, p, first;",
                      f"@p cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group{hint} "
                      f"[$2, {{$3, row{batch}}}], [at]{policy};",
                      "@p cp.async.bulk.commit_group;", "}", "// $0"])


@gluon.constexpr_function
def _wait(stores):
    return f"cp.async.bulk.wait_group.read {stores}; bar.warp.sync -1; // $0"


@gluon.constexpr_function
def bytes_of(S):
    """Bytes of a store buffer: 64 rows of 16-bit results."""
    return 128 * S.epilogue_n.value


@gluon.constexpr_function
def offset_of(fragment, consumer, S):
    """Byte offset of the store buffer that holds a fragment of a consumer's first result. The tiles
    of its accumulators lie one after the other."""
    tile = fragment * S.fragment_n.value // S.epilogue_n.value
    buffer = tile if S.subtile.value == 1 else tile % S.store_buffers.value
    return (S.store_offset.value + S.store_bytes.value * consumer
            + bytes_of(S) * buffer * S.outputs)


@gluon.constexpr_function
def stores_left(fragment, S):
    """How many stores TMA may still have to read when a fragment is written, of the warp, or, where
    tiles are transposed, of the consumer; None: no wait. The first epilogue tile waits for all of
    the tile before, so for all buffers, and later ones where buffers are used again."""
    tile, column = divmod(fragment * S.fragment_n.value, S.epilogue_n.value)
    if tile == column == 0:
        return 0
    if column == 0 and S.subtile.value > 1 and tile >= S.store_buffers.value:
        return (S.store_buffers.value - 1) * S.outputs
    return None


@gluon.jit
def wait_free(LEFT: gl.constexpr, S: gl.constexpr):
    """Waits until TMA has all but the last LEFT stores read (:func:`stores_left`)."""
    if LEFT is not None:
        gl.inline_asm_elementwise(_wait(LEFT), "=r", [], dtype=gl.int32, is_pure=False, pack=1)
        if S.transposed:
            thread_barrier()


@gluon.jit
def write(value, offset, START: gl.constexpr, COLUMNS: gl.constexpr, S: gl.constexpr):
    """Writes a fragment of COLUMNS finished columns, 8 or 16 of the accumulator's, into the store
    buffer at byte ``offset``, as the columns from START on of its epilogue tile (the rows, where
    tiles are transposed)."""
    gluon_require_type("c", value.dtype, "bf16, fp16")
    gl.inline_asm_elementwise(
        _write(COLUMNS, START, S.epilogue_n, S.transposed), _write_registers(COLUMNS),
        (value, shared_address(offset)), dtype=value.dtype, is_pure=False, pack=COLUMNS // 2)


@gluon.jit
def store(map_, offset, batch, row, col, BATCHED: gl.constexpr, S: gl.constexpr):
    """Starts the copy of the store buffer at byte ``offset`` to (batch, row, col) of C. Each warp
    stores its own rows, because several small boxes are stored faster than a large one; where tiles
    are transposed, the first warp stores once all have written their columns."""
    fence_async_shared()
    if S.transposed:
        thread_barrier()
    if BATCHED:
        gl.inline_asm_elementwise(
            _store(3, S.epilogue_n, S.transposed, S.evict_first), "=r,r,l,r,r,r",
            (shared_address(offset), map_, col, row, batch), dtype=gl.int32, is_pure=False, pack=1)
    else:
        gl.inline_asm_elementwise(
            _store(2, S.epilogue_n, S.transposed, S.evict_first), "=r,r,l,r,r",
            (shared_address(offset), map_, col, row), dtype=gl.int32, is_pure=False, pack=1)
