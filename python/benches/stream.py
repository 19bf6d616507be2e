"""How fast do batches come in Python? `python stream.py SHARDFEED [DATA]`

Streams epochs of DATA (made up if there is none) through `shardfeed.TokenLoader` into torch tensors, and through the engine itself
(`SHARDFEED data bench`, the program built in release mode), in turn, on equal threads. Also the time that `state_dict()` takes. Prints a line
for each.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

from shardfeed import TokenLoader


def make(directory: Path) -> None:
    """64 million tokens in 16 files."""
    import numpy
    import pyarrow
    import pyarrow.parquet

    dice = numpy.random.default_rng(0)
    directory.mkdir(parents=True, exist_ok=True)
    for file in range(16):
        lengths = dice.integers(200, 4000, 2000)
        offsets = numpy.concatenate([[0], lengths.cumsum()]).astype(numpy.int32)
        ids = pyarrow.array(dice.zipf(1.2, offsets[-1]).clip(0, 50_000).astype(numpy.int32))
        column = pyarrow.ListArray.from_arrays(pyarrow.array(offsets), ids)
        pyarrow.parquet.write_table(pyarrow.table({"input_ids": column}), directory / f"{file:03}.parquet", row_group_size=500)


def ours(data: Path, threads: int) -> tuple[float, float]:
    """Tokens per second of an epoch, after one that does not count; microseconds of a `state_dict()`."""
    loader = TokenLoader(data, seq_len=2048, global_batch=8, threads=threads)
    for _ in loader:
        pass
    begin, tokens = time.perf_counter(), 0
    for batch in loader:
        tokens += batch.tokens
    rate = tokens / (time.perf_counter() - begin)
    begin = time.perf_counter()
    for _ in range(1000):
        loader.state_dict()
    return rate, (time.perf_counter() - begin) * 1000


def engine(program: str, data: Path, threads: int) -> float:
    """The same by the engine alone."""
    command = [program, "data", "bench", str(data), "--threads", str(threads), "--rounds", "1", "--json"]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    readers = answer["data_sets"][0]["readers"]
    # With all arrays, as Python's loader makes them.
    [ours] = [reader for reader in readers if (reader["reader"], reader["arrays"]) == ("shardfeed", "all four arrays")]
    return float(ours["million_tokens_per_second"]["best"]) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the command line, built in release mode")
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        data = arguments.data or Path(scratch)
        if arguments.data is None:
            make(data)
        for threads in arguments.threads:
            # In turn, and the best of each: the machine is not ours alone.
            pairs = [(*ours(data, threads), engine(arguments.program, data, threads)) for _ in range(arguments.rounds)]
            rates, states, engines = zip(*pairs, strict=True)
            print(
                f"{threads} threads: Python {max(rates) / 1e6:.0f} M tokens/s, the engine {max(engines) / 1e6:.0f}, "
                f"{max(rates) / max(engines):.2f} of it; state_dict() {min(states):.1f} µs",
                flush=True,
            )


if __name__ == "__main__":
    main()
