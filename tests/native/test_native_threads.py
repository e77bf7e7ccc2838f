"""Many threads multiply at a time, through both doors, while overrides come and go."""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch
from answers import PRODUCTS

import tritongemm as tg

pytestmark = pytest.mark.thorough
THREADS = 16
SHAPES = ((33, 17, 40), (8, 16, 24), (5, 64, 3))
#: Each product by both doors.
CALLS = [(f, name) for name in PRODUCTS for f in (tg, torch)
         if f is torch or not name.endswith("_")]


class Program:
    """The calls of a thread, on whole numbers of its own that are small: every sum is exact.

    Made outside of overrides: torch says what is expected.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        self._operands = [[torch.randint(-8, 9, size, generator=generator).float()
                           for size in ((m, k), (k, n), (m, n))] for m, k, n in SHAPES]
        self._exact = {(name, i): product(torch, *operands) for name, product in PRODUCTS.items()
                       for i, operands in enumerate(self._operands)}
        self.made: Counter[tuple[object, str]] = Counter()

    def call(self, f, name: str, i: int) -> None:
        """Checks a product of the shape with this index. Its operands lie in new memory, and its
        result is another than that of the call before."""
        factor = 2.0 ** (self.made.total() % 17 - 8)
        a, b, d = self._operands[i]
        found = PRODUCTS[name](f, factor * a, b, factor * d)
        assert torch.equal(found, factor * self._exact[name, i]), (f.__name__, name, SHAPES[i])
        self.made[f, name] += 1

    def run(self, times: int) -> None:
        """Checks so many calls, in an order of its own."""
        for _ in range(times):
            self.call(*self._random.choice(CALLS), self._random.randrange(len(SHAPES)))


@pytest.fixture
def programs(driver):
    """One a thread. Every call is known to the native dispatcher; Python switches threads 500
    times as often as usual, which otherwise it rarely does while an override enters or leaves."""
    made = [Program(seed) for seed in range(THREADS)]
    with tg.override(min_flops=0):
        for f, name in CALLS:
            for i in range(len(SHAPES)):
                made[0].call(f, name, i)
    made[0].made.clear()
    driver.by_python = driver.by_native = 0
    tg.override_report(clear=True)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 500)
    yield made
    sys.setswitchinterval(usual)


def test_16_threads_of_1000_mixed_calls_get_their_own_results(driver, programs):
    begin = threading.Barrier(THREADS)

    def work(program: Program) -> None:
        begin.wait(60)
        program.run(1000)

    with tg.override(min_flops=0), ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work, program) for program in programs]:
            done.result()
    assert (driver.by_python, driver.by_native) == (0, 1000 * THREADS)
    by_torch = sum(program.made[torch, name] for program in programs for name in PRODUCTS)
    report = tg.override_report()
    assert (report.taken, report.declined) == (by_torch, 0)


def test_overrides_come_and_go_while_other_threads_multiply(driver, programs):
    begin, turning, turns = threading.Barrier(THREADS), list[Future[None]](), 40

    def turn(program: Program) -> None:
        begin.wait(60)
        for i in range(turns):
            one, two = tg.override(min_flops=0), tg.override("mm", min_flops=1e9)
            one.__enter__()
            program.call(torch, "bmm", 0)  # a kernel's, whatever other threads do
            two.__enter__()
            program.run(2)
            for block in (one, two) if i % 2 else (two, one):
                block.__exit__()
                program.run(2)
            with suppress(ZeroDivisionError), tg.override("addmm", strict=True):
                program.run(2)
                raise ZeroDivisionError

    def multiply(program: Program) -> None:
        begin.wait(60)
        while not all(thread.done() for thread in turning):
            program.run(10)

    with ThreadPoolExecutor(THREADS) as pool:
        turning += [pool.submit(turn, program) for program in programs[:4]]
        for done in [*turning, *(pool.submit(multiply, program) for program in programs[4:])]:
            done.result()
    report = tg.override_report()
    assert report.active == ()
    assert {x.name: x.taken for x in report.calls}["bmm"] >= 4 * turns
    before = driver.by_python, driver.by_native
    programs[0].call(torch, "bmm", 0)
    assert (driver.by_python, driver.by_native) == before and driver.by_native > 0
