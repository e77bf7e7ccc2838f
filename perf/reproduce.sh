#!/usr/bin/env bash
# Makes what perf/results/<device> holds, in parts, on a machine with that GPU.
#
#   perf/reproduce.sh OUT PART...
#
#   part       about    what
#   tests     13 min    pytest -m gpu (in parallel, where pytest-xdist is installed)
#   random     5 min    2,000 problems drawn at random, and the other slow GPU tests
#   sanitizer  2 min    compute-sanitizer over CUDA rungs and kernels
#   ladder     9 min    the ladder, its bars, ablation and the sources' experiments
#   bench      4 min    square, llm_decode, stream_k, llm_prefill, bf16 nt, one process
#   suites     3 min    the other suites, bf16, nt or their own layouts
#   layouts   15 min    bf16 nn, tn, tt and fp16 nt on four suites
#   epilogues  5 min    fused epilogues on llm_decode and on 36 shapes of llm_prefill
#   fresh      8 min    the model's choices on 60 shapes that nothing was tuned for, and a bench of
#                       20 shapes a suite that none of them has
#   choices    9 min    the model's choices on 40 fresh shapes like aligned_random beside 248 configs
#                       of each, and all configs of three
#   model      4 min    GPT-2 under tritongemm.override, with the policies own and auto
#   host       2 min    what calls cost the host, and from which size on an override is not slower
#   memory     1 min    peak memory beside torch's
#   gemv       1 min    the bandwidth kernel beside a device copy
#   float32   36 min    float32 beside cuBLAS SGEMM: seven suites, square in four layouts
#   prefill32 29 min    the same of llm_prefill in nt and nn
#   tf32      16 min    TF32: square in four layouts, llm_prefill nt and nn
#   ieee       3 min    float32 at precision ieee: square up to 8,192 in four layouts
#   complex    5 min    complex64: square up to 8,192
#   accuracy   1 min    errors of float32 products by distribution
#   flags      1 min    what flagged rows and columns cost a float32 product
#   mixed      1 min    bf16 inputs with float32 weights, 1 to 64 rows
#   programs  20 min    whole programs in all modes
#   invariance 3 min    what batch invariance costs on llm_prefill and llm_decode
#   orders    12 min    configs of one sum order give equal bits on 10,000 problems
#   firstcall  2 min    the first product of a process, with shipped kernels and without
#   tuning    25 min    a sweep of a fresh shape of each of twelve families, cold and warm; tune on
#                       a Llama program
#   rivals    40 min    three suites and 20 shapes of each other one beside the installed ones of
#                       autotuned cuBLASLt, DeepGEMM, FlagGems, Inductor, triton_kernels, QuACK
#   cluster   13 min    a sweep of 64 problems on one GPU and on all of the host, 16 cores each
#
# A part that fails does not keep the others from running; the exit status is the number that did.
# Minutes are those of one H200 and 16 cores; of random, suites, layouts, fresh, gemv, float32,
# prefill32, tf32, choices, complex, flags, programs, tuning and rivals they are forecasts. Each
# part logs to OUT/PART.log.
#
# GPUS=0,1,2,3 runs as many parts at a time as it names GPUs, each on one of them and on its share
# of the cores, but for `cluster`, which runs last and alone.
set -uo pipefail
if [ $# -lt 2 ]; then sed -n '2,46s/^# \{0,1\}//p' "$0" >&2; exit 2; fi
mkdir -p "$1" && OUT=$(cd "$1" && pwd) || exit 1
shift
cd "$(dirname "$0")/.." || exit 1
PYTHON=${PYTHON:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

tg() { "$PYTHON" -m tritongemm "$@"; }

bench() {  # CSV WORD...
    tg bench "${@:2}" --providers torch,tritongemm --budget 1 --resume --out "$OUT/$1"
}

gpu_tests() {  # MARKERS
    local parallel=()
    "$PYTHON" -c 'import xdist' 2>/dev/null && parallel=(-n 10)  # more wait for the GPU
    "$PYTHON" -m pytest -m "$1" -q --tb=short ${parallel[@]+"${parallel[@]}"} tests
}

part_tests() { gpu_tests gpu; }

part_random() { gpu_tests "gpu and slow"; }

part_sanitizer() { "$PYTHON" tests/sanitizer/run.py; }

part_ladder() {
    local to="$OUT/ladder" status=0
    tg ladder --size 1024,2048,4096,8176,8192 --rungs thread_tile_2d,warp_tiled,warp_tiled_async \
        --processes 3 --budget 1 --tag bars --out "$to/bars.csv" --no-pictures || status=1
    tg ladder --size 512,1024,2048,4096 --budget 1 --out "$to/ladder.csv" || status=1
    tg ladder --ablate --size 4096 --budget 1 --out "$to/ablation.csv" --no-pictures || status=1
    for name in S2 S2-sizes S3 S4; do
        tg ladder --experiment $name --budget 1 --out "$to/$name.csv" --no-pictures || status=1
    done
    tg ladder --experiment S1 --profile --budget 1 --out "$to/S1.csv" --no-pictures || status=1
    tg ladder --size 4096 --profile --resume --budget 1 --out "$to/ladder.csv" || status=1
    return $status
}

part_bench() { bench bf16-nt.csv square llm_decode stream_k llm_prefill --dtype bf16 --layout nt; }

part_suites() {
    bench bf16-suites.csv wide_k split_k aligned_random odd deepbench sources batched training \
        --dtype bf16 --layout nt
}

part_layouts() {
    local status=0 four="square llm_prefill aligned_random stream_k"
    bench bf16-layouts.csv $four --dtype bf16 --layout nn,tn,tt || status=1
    bench fp16-nt.csv $four --dtype fp16 --layout nt || status=1
    return $status
}

part_epilogues() {
    local words="--dtype bf16 --layout nt --epilogue bias+gelu,bias+relu,add" status=0
    bench epilogue-decode.csv llm_decode $words || status=1
    bench epilogue-prefill.csv llm_prefill --spread 36 $words || status=1
    return $status
}

part_fresh() {
    local status=0 seed="${SEED:-20261122}"
    local families="square,wide_k,llm_prefill,llm_decode,split_k,aligned_random,stream_k,odd"
    families="$families,deepbench,sources,batched,training"
    tg regret --fresh "$seed" --journal "$OUT/regret.jsonl" --resume \
        --out "$OUT/regret.csv" --at-least 0.95 --worst 0.80 || status=1
    bench bf16-fresh.csv --fresh "$seed" --count 20 --family "$families" \
        --dtype bf16 --layout nt || status=1
    return $status
}

part_choices() {
    local status=0 seed="${SEED:-20261122}"
    tg regret --fresh "$seed" --family aligned_random --count 40 --random 200 --resume \
        --journal "$OUT/choices.jsonl" --out "$OUT/choices.csv" --at-least 0.975 --worst 0.90 || status=1
    # The first columns are a suite's: batch, m, n, k, dtype, layout.
    head -n 4 "$OUT/choices.csv" | cut -d, -f1-6 >"$OUT/three.csv"
    tg sweep "$OUT/three.csv" --search full --resume --journal "$OUT/three.jsonl" || status=1
    return $status
}

part_model() {
    local status=0
    TRITONGEMM_POLICY=own "$PYTHON" perf/train_gpt2.py --out "$OUT/model" || status=1
    "$PYTHON" perf/train_gpt2.py --out "$OUT/model-auto" || status=1
    return $status
}

part_host() {
    local status=0
    "$PYTHON" perf/bench_host.py || status=1
    "$PYTHON" perf/bench_min_flops.py || status=1
    return $status
}

part_memory() { "$PYTHON" perf/bench_memory.py; }

part_gemv() {
    "$PYTHON" perf/bench_gemv.py --shapes 1x4096x14336,1x8192x8192,1x28672x4096,4x8192x8192,8x8192x8192 \
        --configs 4x1024_w4_s1,8x256_w4_s2,16x256_w4_s1
}

part_float32() {
    local status=0
    bench fp32.csv square --dtype fp32 --layout nt,nn,tn,tt || status=1
    bench fp32.csv stream_k --dtype fp32 --layout nt,nn || status=1
    bench fp32.csv aligned_random --dtype fp32 --layout nt,nn,tn,tt || status=1
    bench fp32.csv llm_decode batched training split_k --dtype fp32 --layout nt || status=1
    return $status
}

part_prefill32() { bench fp32-prefill.csv llm_prefill --dtype fp32 --layout nt,nn; }

part_tf32() {
    local status=0
    bench tf32.csv square --dtype fp32 --precision tf32 --layout nt,nn,tn,tt || status=1
    bench tf32.csv llm_prefill --dtype fp32 --precision tf32 --layout nt,nn || status=1
    return $status
}

part_ieee() {
    bench ieee.csv square --dtype fp32 --precision ieee --layout nt,nn,tn,tt --max-extent 8192
}

# Rounds of large ones are long, and few rounds under the power cap let the control miss its limit.
part_complex() {
    tg bench square --dtype c64 --layout nn --max-extent 8192 --providers torch,tritongemm --budget 10 \
        --resume --out "$OUT/complex64.csv"
}

part_flags() {
    local status=0
    "$PYTHON" perf/bench_flags.py || status=1
    "$PYTHON" perf/bench_flags.py --precision tf32 || status=1
    return $status
}

part_accuracy() { tg accuracy --out "$OUT/accuracy/accuracy.csv"; }

part_mixed() { "$PYTHON" perf/bench_mixed.py "$OUT/mixed.csv"; }

part_programs() { tg models --budget 2 --out "$OUT/programs.csv"; }

part_invariance() { "$PYTHON" perf/bench_invariance.py --out "$OUT/batch-invariance.csv"; }

part_orders() { "$PYTHON" perf/prove_sum_orders.py --out "$OUT/sum-orders.csv" --minutes 12; }

part_firstcall() {
    "$PYTHON" perf/bench_first_call.py "$OUT/first-call.csv" --build "$OUT/cubins" --rounds 3
}

part_tuning() {
    local status=0
    "$PYTHON" perf/bench_tuning.py "$OUT/tuning" --budget 1500 || status=1
    "$PYTHON" perf/bench_tune.py "$OUT/tune.csv" || status=1
    return $status
}

part_rivals() {
    local status=0 installed words="--dtype bf16 --layout nt --resume --budget 0.25"
    installed=$("$PYTHON" -c 'import sys; from importlib.util import find_spec as find
from tritongemm.bench.providers import load
print(*(x for x in sys.argv[1:] if find(getattr(load(x), "package", "torch"))), sep=",")' \
        cublaslt-tuned deep_gemm flag_gems inductor triton_kernels quack) || return 1
    words="$words --providers torch,tritongemm,$installed"
    tg bench square llm_decode llm_prefill $words --out "$OUT/rivals.csv" || status=1
    local suite
    for suite in wide_k split_k aligned_random stream_k odd deepbench sources batched training low_rank; do
        tg bench $suite --spread 20 $words --out "$OUT/rivals.csv" || status=1
    done
    tg report "$OUT/rivals.csv" --section rivals || status=1
    return $status
}

part_cluster() {
    unset CUDA_VISIBLE_DEVICES
    local count
    count=$("$PYTHON" -c 'import torch; print(torch.cuda.device_count())')
    "$PYTHON" perf/bench_cluster.py "$OUT/cluster.csv" --gpus "$count,1" --cores-per-gpu 16
}

for part in "$@"; do
    declare -F "part_$part" >/dev/null || {
        echo "perf/reproduce.sh: no part is named $part" >&2
        exit 2
    }
done
if [ -n "${GPUS:-}" ]; then
    status=0 alone=() shared=()
    for part in "$@"; do
        if [ "$part" = cluster ]; then alone+=("$part"); else shared+=("$part"); fi
    done
    IFS=, read -ra gpus <<<"$GPUS"
    export EVERY_GPU="${gpus[*]}" CORES=$(($(nproc) / ${#gpus[@]}))
    unset GPUS
    if [ ${#shared[@]} -gt 0 ]; then
        # A lane is a slot of xargs: its GPU, and as many cores as the others have.
        printf '%s\n' "${shared[@]}" | xargs -P ${#gpus[@]} --process-slot-var=SLOT -I{} bash -c '
            gpus=($EVERY_GPU)
            export CUDA_VISIBLE_DEVICES=${gpus[$SLOT]}
            exec taskset -c $((CORES * SLOT))-$((CORES * SLOT + CORES - 1)) "$0" "$1" {}
        ' "$PWD/perf/reproduce.sh" "$OUT" || status=1
    fi
    if [ ${#alone[@]} -gt 0 ]; then "$PWD/perf/reproduce.sh" "$OUT" "${alone[@]}" || status=1; fi
    exit $status
fi
failed=0
for part in "$@"; do
    begun=$(date +%s)
    if "part_$part" >"$OUT/$part.log" 2>&1; then word=done; else word=FAILED; failed=$((failed + 1)); fi
    echo "$part: $word after $(($(date +%s) - begun)) s; $(tail -n 1 "$OUT/$part.log")"
done
exit $failed
