"""Trains and runs GPT-2 under ``tritongemm.override`` and with torch on cuBLAS and on cuBLASLt.

A model of GPT-2's size with random weights (transformers' own class, 124 million parameters) is
trained for 50 steps in bf16 autocast, eagerly and compiled, from the same weights on the same words
by each provider, and so for each of several seeds, which decide weights, words and dropout. Then
the same steps of the first seed's model are timed in turn, and inference is captured into CUDA
graphs.

It ends with 1 and says why, unless
  - each loss under override, of each seed, is within LIMIT times as far from torch's on cuBLAS as
    torch's on cuBLASLt has been so far for any seed (or FLOOR, if that is more);
  - at least TAKEN of a training step's flops of mm, addmm, bmm and baddbmm ran in this package's
    kernels (an inference of single words has products below the override's least flops);
  - the median step is not slower than torch's on the faster of its libraries by more than TIE.

Training multiplies roundings, so how far torch's two libraries come apart is drawn anew with each
seed, and so is how far override does. One draw is a poor estimate of how far is usual. The largest
of several, to which each seed is held, is a better one of the same bar: LIMIT and FLOOR are as for
one seed.

    TRITONGEMM_POLICY=own python perf/train_gpt2.py --out perf/results/nvidia-h200/model
    TRITON_INTERPRET=1 python perf/train_gpt2.py --device cpu --tiny --out /tmp/model

With no GPU there is one torch, and neither shares nor times are judged; without TRITON_INTERPRET=1
nothing is overridden either.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gc
import io
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch.nn import functional

import tritongemm as tg
from tritongemm import settings
from tritongemm.integration.record import recording
from tritongemm.records.atomic import write_atomic

#: Differences between the losses of two torch libraries that are allowed to grow, and below which
#: a difference says nothing: a bf16 logit of 8 is rounded by as much as 0.03.
LIMIT, FLOOR = 2.0, 0.005
TAKEN, TIE = 0.95, 1.01
PROVIDERS = ("cublas", "cublaslt", "override")


@dataclass
class Row:
    """One provider in one mode.

    Attributes:
        step_us: the median of the timed steps (in ``graph`` modes: replays), and with it the lower
            and upper quartile.
        peak_bytes: the most memory that torch's allocator had handed out in a step.
        taken: share of the flops of matrix products by this package's kernels.
        policy: what TRITONGEMM_POLICY said: ``auto`` leaves products to torch that it is known to
            run faster.
        ratio: the faster torch's median / this one: above 1 is faster than torch.
    """

    mode: str
    provider: str
    steps: int = 0
    step_us: float = 0.0
    lower_us: float = 0.0
    upper_us: float = 0.0
    ratio: float = 0.0
    peak_bytes: int = 0
    taken: float = 0.0
    loss_first: float = 0.0
    loss_last: float = 0.0
    policy: str = field(default_factory=lambda: settings.current().policy)


@dataclass
class Run:
    """What the options say, and what was found."""

    args: argparse.Namespace
    rows: list[Row] = field(default_factory=list)
    losses: list[dict[str, object]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def cuda(self) -> bool:
        return self.args.device == "cuda"


def main() -> int:
    args = _arguments()
    run = Run(args)
    for mode in args.modes.split(","):
        model = _model(args, args.seed)
        forward = model
        if mode == "compiled":
            forward = torch.compile(model, backend="aot_eager" if args.tiny else "inductor")
        # The first seed's model is trained last: it is the one that is timed.
        losses = {seed: _train(run, model, forward, seed)
                  for seed in reversed(range(args.seed, args.seed + args.seeds))}
        _judge_losses(run, mode, losses)
        rows = {name: Row(mode, name, args.steps, loss_first=found[0], loss_last=found[-1])
                for name, found in losses[args.seed].items()}
        train = _training_step(run, model, forward, args.seed)
        _time(run, rows, dict.fromkeys(PROVIDERS, train), train)
        _judge(run, rows)
    if run.cuda and not args.tiny:
        _graphs(run)
    _write(run)
    for row in run.rows:
        print(f"{row.mode:>14} {row.provider:>9} {row.step_us:>10.0f} us  x {row.ratio:5.3f}  "
              f"{100 * row.taken:5.1f} % taken  {row.peak_bytes / 2**20:8.0f} MiB  "
              f"loss {row.loss_first:.4f} -> {row.loss_last:.4f}")
    for failure in run.failures:
        print(f"NOT MET  {failure}", file=sys.stderr)
    return 1 if run.failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a hand-made model of 2 layers")
    parser.add_argument("--steps", type=int, help="training steps (default 50; tiny: 3)")
    parser.add_argument("--rounds", type=int, help="timed steps of each (default 30; tiny: 2)")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, help="words of a text (default 1024; tiny: 12)")
    parser.add_argument("--modes", default="eager,compiled")
    parser.add_argument("--min-flops", type=float, help="as for tritongemm.override")
    parser.add_argument("--seed", type=int, default=20261121, help="the first seed")
    parser.add_argument("--seeds", type=int,
                        help="how many, each one more than the last (default 3; tiny: 1)")
    parser.add_argument("--out", type=Path, required=True,
                        help="folder for train_gpt2.csv and train_gpt2_losses.csv")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device; use --device cpu --tiny")
    if args.rounds is not None and args.rounds < 2:
        parser.error(f"--rounds {args.rounds} has no quartiles; use at least 2")
    if args.seeds is not None and args.seeds < 1:
        parser.error(f"--seeds {args.seeds} trains nothing; use at least 1")
    defaults = (("steps", 50, 3), ("rounds", 30, 2), ("length", 1024, 12), ("seeds", 3, 1))
    for name, whole, tiny in defaults:
        if getattr(args, name) is None:
            setattr(args, name, tiny if args.tiny else whole)
    if args.tiny:
        args.batch = 2
        args.min_flops = 0.0 if args.min_flops is None else args.min_flops
    return args


# -- the model and its words -----------------------------------------------------------------------

class TinyGPT(torch.nn.Module):
    """GPT-2's structure in small: layers are addmm as in transformers' Conv1D, words are tied."""

    def __init__(self, words: int = 40, width: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(words, width)
        torch.nn.init.normal_(self.words.weight, std=0.02)  # as GPT-2: small logits
        self.blocks = torch.nn.ModuleList(
            torch.nn.ParameterDict({name: torch.nn.Parameter(0.02 * torch.randn(shape))
                                    for name, shape in (("mix", (width, 3 * width)),
                                                        ("mix_bias", (3 * width,)),
                                                        ("out", (width, width)),
                                                        ("out_bias", (width,)))})
            for _ in range(layers))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.words(input_ids)
        for block in self.blocks:
            flat = torch.addmm(block["mix_bias"], functional.layer_norm(
                x, x.shape[-1:]).flatten(0, 1), block["mix"])
            q, k, v = flat.view(*x.shape[:2], -1).chunk(3, -1)
            seen = torch.bmm(torch.bmm(q, k.mT).softmax(-1), v)
            mixed = torch.addmm(block["out_bias"], seen.flatten(0, 1), block["out"])
            x = x + functional.gelu(mixed).view_as(x)
        return functional.linear(x, self.words.weight)


class GPT2(torch.nn.Module):
    """transformers' GPT2LMHeadModel, its default configuration, as words -> logits."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        self.model = GPT2LMHeadModel(GPT2Config(use_cache=False))

    def forward(self, input_ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=mask, use_cache=False).logits


def _causal(texts: int, length: int) -> torch.Tensor:
    """The mask that transformers would create. Creating it inside the model synchronizes, which a
    capture forbids."""
    least = torch.finfo(torch.bfloat16).min
    mask = torch.full((length, length), least, dtype=torch.bfloat16, device="cuda").triu(1)
    return mask.expand(texts, 1, length, length)


def _model(args: argparse.Namespace, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return (TinyGPT() if args.tiny else GPT2()).to(args.device)


def _texts(args: argparse.Namespace, seed: int) -> list[torch.Tensor]:
    """Four batches of words that follow a rule, so that the loss can decrease."""
    drawn = random.Random(seed)
    words = 40 if args.tiny else 50257
    texts = []
    for _ in range(4):
        rows = [[(start + i * stride) % words for i in range(args.length + 1)]
                for start, stride in ((drawn.randrange(words), drawn.randrange(1, 64))
                                      for _ in range(args.batch))]
        texts.append(torch.tensor(rows, device=args.device))
    return texts


@contextlib.contextmanager
def _provider(run: Run, name: str) -> Iterator[None]:
    """Runs products by ``name``."""
    if name == "override":
        with tg.override(min_flops=run.args.min_flops):
            yield
    elif not run.cuda:
        yield
    else:
        before = torch.backends.cuda.preferred_blas_library()
        torch.backends.cuda.preferred_blas_library(name)
        try:
            yield
        finally:
            torch.backends.cuda.preferred_blas_library(before)


# -- training --------------------------------------------------------------------------------------

def _training_step(run: Run, model: torch.nn.Module,
                   forward: Callable[[torch.Tensor], torch.Tensor],
                   seed: int) -> Callable[[], torch.Tensor]:
    """step() -> its loss; the seed's words go round.

    Steps are the first that GPT-2 is trained with (nanoGPT's train.py: AdamW, 6e-4 after 2,000
    steps of warm-up, weight decay 0.1, gradients clipped at 1). With a faster warm-up losses jump
    within 50 steps (10.46 to 10.65 in results/nvidia-h200/model, 10.2 to 12.6 without clipping),
    and a jump multiplies whatever rounding came before it: two of torch's own libraries were 0.25
    apart then, and 0.00004 the step before.
    """
    optimizer = torch.optim.AdamW(model.parameters(), 6e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                  fused=run.cuda)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / 2000, total_iters=2000)
    texts, count = _texts(run.args, seed), iter(range(10**9))

    def step() -> torch.Tensor:
        text = texts[next(count) % len(texts)]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(run.args.device, torch.bfloat16):
            logits = forward(text[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), text[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm_up.step()
        return loss.detach()
    return step


def _train(run: Run, model: torch.nn.Module, forward: Callable,
           seed: int) -> dict[str, list[float]]:
    """Each provider's losses of a training from the seed's weights on.

    ``model`` takes the weights up, since ``forward`` may be its compiled form.
    """
    weights, losses = _model(run.args, seed).state_dict(), {}
    for name in PROVIDERS:
        model.load_state_dict(weights)
        torch.manual_seed(seed)  # of dropout
        step = _training_step(run, model, forward, seed)
        with _provider(run, name):
            losses[name] = [loss.item() for loss in [step() for _ in range(run.args.steps)]]
    return losses


def _judge_losses(run: Run, mode: str, losses: dict[int, dict[str, list[float]]]) -> None:
    """Seed -> provider -> the losses of its steps; a step has one bound for all seeds."""
    apart = [[abs(second - first) for first, second in zip(one["cublas"], one["cublaslt"])]
             for one in losses.values()]
    bounds = [LIMIT * max(so_far, FLOOR)
              for so_far in itertools.accumulate(map(max, zip(*apart)), max)]
    for seed, one in sorted(losses.items()):
        for i, (bound, first, second, ours) in enumerate(
                zip(bounds, *(one[name] for name in PROVIDERS))):
            found = abs(ours - first)
            run.losses.append({"mode": mode, "seed": seed, "step": i, "cublas": first,
                               "cublaslt": second, "override": ours, "difference": found,
                               "bound": bound})
            if not found <= bound:
                run.failures.append(f"{mode}, seed {seed}, step {i}: the loss {ours:.5f} is "
                                    f"{found:.5f} from torch's {first:.5f}; {bound:.5f} is allowed")


# -- time, memory and share ------------------------------------------------------------------------

def _time(run: Run, rows: dict[str, Row], steps: dict[str, Callable[[], object]],
          watched: Callable[[], object]) -> None:
    """Fills in times of steps that the providers make in turn, peaks, and the kernels' share.

    ``watched`` makes the same products where a recording sees them.
    """
    times: dict[str, list[float]] = {name: [] for name in rows}
    order = random.Random(run.args.seed)
    for name in rows:  # plans, libraries' heuristics, clocks
        with _provider(run, name):
            for _ in range(3):
                steps[name]()
    gc.collect()
    gc.disable()
    try:
        for _ in range(run.args.rounds):
            for name in order.sample(list(rows), len(rows)):
                with _provider(run, name):
                    times[name].append(_timed_us(run, rows[name], steps[name]))
    finally:
        gc.enable()
    for name, row in rows.items():
        row.step_us = statistics.median(times[name])
        row.lower_us, _, row.upper_us = statistics.quantiles(times[name], n=4)
    best = min(row.step_us for name, row in rows.items() if name != "override")
    for row in rows.values():
        row.ratio = best / row.step_us
    with recording(run.args.min_flops) as seen:
        watched()
    flops, taken = seen.flops()
    rows["override"].taken = taken / flops
    run.rows += rows.values()


def _timed_us(run: Run, row: Row, step: Callable[[], object]) -> float:
    """Wall time of one step from an idle device to an idle device, so that the host counts too."""
    if run.cuda:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    if run.cuda:
        torch.cuda.synchronize()
        row.peak_bytes = max(row.peak_bytes, torch.cuda.max_memory_allocated())
    return 1e6 * (time.perf_counter() - start)


def _judge(run: Run, rows: dict[str, Row]) -> None:
    ours = rows["override"]
    if not run.cuda:
        return
    if ours.steps and ours.taken < TAKEN:
        run.failures.append(f"{ours.mode}: {100 * ours.taken:.1f} % of the flops were taken; the "
                            f"goal is {100 * TAKEN:.0f} %")
    if ours.ratio < 1 / TIE:
        run.failures.append(f"{ours.mode}: a step takes {ours.step_us:.0f} us, torch's "
                            f"{ours.ratio * ours.step_us:.0f} us")


# -- inference -------------------------------------------------------------------------------------

def _graphs(run: Run) -> None:
    """The model's logits by a CUDA graph of each provider: one text, and words of 32 texts."""
    model = _model(run.args, run.args.seed).to(torch.bfloat16).eval()
    for mode, shape in (("graph text", (1, run.args.length)), ("graph words", (32, 1))):
        words, mask = torch.randint(40, shape, device="cuda"), _causal(*shape)
        graphs = {name: torch.cuda.CUDAGraph() for name in PROVIDERS}
        logits = {}
        for name, graph in graphs.items():
            with torch.no_grad(), _provider(run, name):
                for _ in range(3):  # makes the plans: a capture makes none
                    model(words, mask)
                torch.cuda.synchronize()
                with torch.cuda.graph(graph):
                    logits[name] = model(words, mask)
        for graph in graphs.values():
            graph.replay()
        torch.cuda.synchronize()
        _judge_logits(run, mode, *(logits[name].float() for name in PROVIDERS))

        def infer(words: torch.Tensor = words, mask: torch.Tensor = mask) -> object:
            with torch.no_grad():
                return model(words, mask)

        rows = {name: Row(mode, name) for name in PROVIDERS}
        _time(run, rows, {name: graph.replay for name, graph in graphs.items()}, infer)
        _judge(run, rows)


def _judge_logits(run: Run, mode: str, first: torch.Tensor, second: torch.Tensor,
                  ours: torch.Tensor) -> None:
    rounding = torch.finfo(torch.bfloat16).eps * first.abs().max().item()
    bound = LIMIT * max((second - first).abs().max().item(), rounding)
    found = (ours - first).abs().max().item()
    if not found <= bound:
        run.failures.append(f"{mode}: a logit is {found:.4f} from torch's; {bound:.4f} is allowed")


def _write(run: Run) -> None:
    """Both tables, each in one step."""
    for name, rows in (("train_gpt2.csv", [asdict(row) for row in run.rows]),
                       ("train_gpt2_losses.csv", run.losses)):
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomic(run.args.out / name, text.getvalue())


if __name__ == "__main__":
    sys.exit(main())
