"""Which epoch a loop is: workers that begin it in any order, at once, or late, agree."""

import copy
import itertools
import pickle
import random
import threading
from collections.abc import Callable

import pytest
from shardfeed.loops import GENERATIONS_KEPT, LOOPS_KEPT, WORKERS_MAX, Loops, _shared


def test_workers_agree_in_any_order() -> None:
    for order in itertools.permutations(range(4)):
        loops = Loops()
        for loop in range(3):
            assert {loops.join(worker, 100 + loop, None, first=5) for worker in order} == {5 + loop}
        assert loops.last_epoch() == 7


def test_more_loops_than_are_kept_and_workers_that_come_and_go() -> None:
    loops = Loops()
    dice = random.Random(1)
    for loop in range(3 * LOOPS_KEPT):
        order = dice.sample(range(6), dice.randint(1, 6))
        assert [loops.join(worker, (9, loop), None) for worker in order] == [loop] * len(order)


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


def as_seen_by_a_child(loops: Loops) -> Loops:
    """The same memory, and what was known when the child was made."""
    return _shared(loops._entries, loops._told, loops.owner, loops.generation)


def test_what_a_worker_knows_counts() -> None:
    loops = Loops()
    assert loops.last_epoch() is None
    assert loops.join(0, 1, 12) == 12
    assert loops.join(1, 1, None) == 12


def test_what_is_told_reaches_a_child_once_and_begins_anew() -> None:
    loops = Loops()
    assert loops.join(0, 1, 12) == 12
    before = as_seen_by_a_child(loops)
    assert before.news() is None
    loops.begin_at({"epoch": 3, "position": 40})
    assert loops.last_epoch() is None and loops.news() is None
    assert before.last_epoch() == 12, "it has not heard of it yet"
    assert before.news() == {"epoch": 3, "position": 40} and before.last_epoch() is None
    assert before.news() is None
    assert before.join(0, 2, None, first=3) == 3 and loops.last_epoch() == 3
    assert as_seen_by_a_child(loops).news() is None, "it was made after that"


def test_workers_that_start_while_something_is_told_still_agree() -> None:
    loops = Loops()
    assert loops.join(0, 1, None) == 0
    first, second = as_seen_by_a_child(loops), as_seen_by_a_child(loops)
    assert first.join(0, 2, None) == 1
    loops.begin_at({"epoch": 7})
    assert second.join(1, 2, None) == 1


def test_workers_of_one_loop_that_heard_of_different_things_say_so() -> None:
    loops = Loops()
    first, second = as_seen_by_a_child(loops), as_seen_by_a_child(loops)
    assert first.join(0, 1, None) == second.join(1, 1, None) == 0
    assert first.join(0, 2, None) == 1
    loops.begin_at({"epoch": 7})
    assert second.news() == {"epoch": 7}
    with pytest.raises(RuntimeError, match="by another thread, while a loop over a DataLoader was beginning"):
        second.join(1, 2, None, first=7)
    assert first.news() == {"epoch": 7}
    assert first.join(0, 3, None, first=7) == 8 == second.join(1, 3, None, first=7)


def test_a_worker_that_is_so_late_that_its_loop_is_forgotten_says_so() -> None:
    loops = Loops()
    first, second, third = (as_seen_by_a_child(loops) for _ in range(3))
    assert first.join(0, 1, None, first=5) == 5
    for told in range(GENERATIONS_KEPT - 1):
        loops.begin_at({"epoch": told})
    assert second.join(1, 1, None, first=5) == 5
    loops.begin_at({"epoch": 3})
    with pytest.raises(RuntimeError, match=f"told {GENERATIONS_KEPT} times where to begin"):
        third.join(2, 1, None, first=5)


def test_who_reads_while_something_is_written_reads_all_of_it_or_nothing() -> None:
    loops = Loops()
    child, told = as_seen_by_a_child(loops), []
    states = [{"epoch": number, "skipped": [number] * (number % 500)} for number in range(2000)]

    def listen() -> None:
        while not told or told[-1] != states[-1]:
            news = child.news()
            if news is not None:
                told.append(news)

    thread = threading.Thread(target=listen)
    thread.start()
    for state in states:
        loops.begin_at(state)
    thread.join()
    assert all(state == states[state["epoch"]] for state in told)


def test_a_writer_that_died_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardfeed.loops.WRITING_SECONDS_MAX", 0.01)
    loops = Loops()
    child = as_seen_by_a_child(loops)
    loops._head()[0] += 1
    with pytest.raises(RuntimeError, match=f"process {loops.owner} began to say"):
        child.news()


@pytest.mark.parametrize("how", [copy.deepcopy, lambda loops: pickle.loads(pickle.dumps(loops))], ids=["deepcopy", "pickle"])
def test_a_copy_has_memory_of_its_own_and_goes_on_after_the_same_epoch(how: Callable[[Loops], Loops]) -> None:
    loops = Loops()
    loops.join(0, 1, 4)
    other = how(loops)
    assert other._entries.is_shared() and other._told.is_shared() and other.last_epoch() == 4
    assert other.join(0, 2, None) == 5
    other.begin_at({"epoch": 1})
    assert loops.last_epoch() == 4 and as_seen_by_a_child(loops).news() is None


def test_too_many_workers_and_too_long_a_state_are_refused() -> None:
    loops = Loops()
    with pytest.raises(ValueError, match=f"at most {WORKERS_MAX}"):
        loops.join(WORKERS_MAX, 1, None)
    with pytest.raises(ValueError, match="skip neighbouring steps as one range"):
        loops.begin_at({"skipped": "x" * 5000})
