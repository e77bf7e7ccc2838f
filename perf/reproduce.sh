#!/usr/bin/env bash
# Makes what perf/results/<device> holds, in parts, on a machine with that GPU.
#
#   perf/reproduce.sh OUT PART...
#
#   part       about    what
#   tests      4 min    pytest -m gpu (in parallel, where pytest-xdist is installed)
#   random     5 min    2,000 problems drawn at random, and the other slow GPU tests
#   sanitizer  2 min    compute-sanitizer over CUDA rungs and kernels
#   ladder     9 min    the ladder, its bars, ablation and the sources' experiments
#   bench      4 min    square, llm_decode, stream_k, llm_prefill, bf16 nt, one process
#   suites     3 min    the other suites, bf16, nt or their own layouts
#   layouts   15 min    bf16 nn, tn, tt and fp16 nt on four suites
#   epilogues  5 min    fused epilogues on llm_decode and on 36 shapes of llm_prefill
#   fresh      8 min    the model's choices on 60 shapes that nothing was tuned for, and a bench of
#                       20 shapes a suite that none of them has
#   model      4 min    GPT-2 under tritongemm.override, with the policies own and auto
#   host       2 min    what calls cost the host, and from which size on an override is not slower
#   memory     1 min    peak memory beside torch's
#   gemv       1 min    the bandwidth kernel beside a device copy
#
# A part that fails does not keep the others from running; the exit status is the number that did.
# Minutes are those of one H200 and 16 cores; of random, suites, layouts, fresh and gemv they are
# forecasts. Each part logs to OUT/PART.log.
set -uo pipefail
if [ $# -lt 2 ]; then sed -n '2,24s/^# \{0,1\}//p' "$0" >&2; exit 2; fi
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

for part in "$@"; do
    case $part in
        tests|random|sanitizer|ladder|bench|suites|layouts|epilogues|fresh|model|host|memory|gemv) ;;
        *) echo "perf/reproduce.sh: no part is named $part" >&2; exit 2 ;;
    esac
done
failed=0
for part in "$@"; do
    begun=$(date +%s)
    if "part_$part" >"$OUT/$part.log" 2>&1; then word=done; else word=FAILED; failed=$((failed + 1)); fi
    echo "$part: $word after $(($(date +%s) - begun)) s; $(tail -n 1 "$OUT/$part.log")"
done
exit $failed
