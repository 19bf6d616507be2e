"""Which epoch a loop is: workers that begin it in any order, at once, or late, agree."""

import itertools
import random
import threading

import pytest
from shardfeed.loops import LOOPS_KEPT, WORKERS_MAX, Loops


def test_workers_agree_in_any_order() -> None:
    for order in itertools.permutations(range(4)):
        loops = Loops()
        for loop in range(3):
            assert {loops.join(worker, 100 + loop, None, first=5) for worker in order} == {5 + loop}
        assert loops.last_epoch() == 7


def test_workers_that_persist_have_one_seed_for_all_loops() -> None:
    loops = Loops()
    dice = random.Random(1)
    for loop in range(3 * LOOPS_KEPT):
        order = dice.sample(range(3), 3)
        assert [loops.join(worker, 9, None) for worker in order] == [loop] * 3


def test_a_worker_that_is_late_joins_the_loop_that_it_was_made_for() -> None:
    loops = Loops()
    assert loops.join(0, 1, None) == 0
    assert loops.join(0, 2, None) == 1
    assert loops.join(1, 1, None) == 0
    assert loops.join(1, 2, None) == 1
    assert loops.join(0, 3, None) == 2


def test_workers_that_begin_at_once_agree() -> None:
    loops = Loops()
    for loop in range(50):
        gate, joined = threading.Barrier(4), []

        def begin(worker: int, loop: int = loop, gate: threading.Barrier = gate, joined: list[int] = joined) -> None:
            gate.wait()
            joined.append(loops.join(worker, 1000 + loop, None))

        threads = [threading.Thread(target=begin, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert joined == [loop] * 4


def test_what_a_worker_knows_counts_and_what_was_told_begins_anew() -> None:
    loops = Loops()
    assert loops.base() is None and loops.last_epoch() is None
    assert loops.join(0, 1, 12) == 12
    assert loops.join(1, 1, None) == 12
    loops.begin_at({"epoch": 3, "position": 40})
    assert loops.base() == {"epoch": 3, "position": 40} and loops.last_epoch() is None
    assert loops.join(0, 1, None, first=3) == 3
    loops.begin_at(None)
    assert loops.base() is None


def test_too_many_workers_and_too_long_a_state_are_refused() -> None:
    loops = Loops()
    with pytest.raises(ValueError, match=f"at most {WORKERS_MAX}"):
        loops.join(WORKERS_MAX, 1, None)
    with pytest.raises(ValueError, match="skip neighbouring steps as one range"):
        loops.begin_at({"skipped": "x" * 5000})
