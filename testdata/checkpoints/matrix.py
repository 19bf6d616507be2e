"""Make many small distributed checkpoints, and say what torch reads in each.

    python matrix.py OUT          make OUT/<case>/ for each case, and OUT/cases.json
    python matrix.py OUT --big    also checkpoints beyond 4 GiB, in sparse files;
                                  takes 13 GiB of memory and another minute

A reader of our own must give the same bytes as torch's.  Here torch makes
every kind of checkpoint that it can make, and reads it; only hashes are kept,
for the reader's tests to compare with.  README.md describes cases.json.

What is tested where:
    single.py     dtypes, layouts, shapes, slices, objects, keys, files, zstd
    variants.py   metadata as other versions write it, byte orders
    hugging.py    safetensors
    ranks.py      jobs of 1 to 4 processes that load each other's checkpoints;
                  sharded.py has the state dicts they save
    big.py        --big

What torch 2.15 cannot make, and so is not here:
- int1 ... int7, uint1 ... uint7, bits*: dcp.save fails, torch.iinfo refuses
  them; quint4x2 and quint2x4: it fails, they cannot be cloned.
- Sparse, CSR, mkldnn and nested tensors: dcp.save fails (no storage, no
  strides, no size).
- Consolidated Hugging Face files with integers or booleans: consolidation
  asks torch.finfo about each dtype.
- float8_e8m0fnu and float4_e2m1fn_x2 through HuggingFaceStorageReader: it
  fails on them.  They are in the cases that the safetensors package reads.
- Several shards of a tensor on one rank with SerializationFormat.SAFETENSORS:
  the writer keeps only the last of them.
- Extensions (zstd) with SerializationFormat.SAFETENSORS: the writer names them
  in the metadata, but does not transform the tensors.
- Overlapping chunks: the save planner refuses them.
"""

import argparse
import json
import shutil
import signal
import sys
from pathlib import Path

import torch

sys.dont_write_bytecode = True  # No __pycache__ in the source tree.

import big  # noqa: E402
import hugging  # noqa: E402
import ranks  # noqa: E402
import single  # noqa: E402
import variants  # noqa: E402
from record import quiet  # noqa: E402

# In a directory of this script's making, from the start: a run that failed
# leaves one too.
MARK = "made-by-matrix"


def emptied(out):
    """The directory without what an earlier run made.  A directory with
    anything else in it is not ours to empty."""
    if (out / MARK).exists():
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise SystemExit(f"{out} is not empty, and not from an earlier run; name another directory")
    (out / MARK).touch()
    return out


def write_list(out, cases):
    if len({c.name for c in cases}) != len(cases):
        raise AssertionError("two cases have the same name")
    lines = ",\n".join(json.dumps(c.as_json(), ensure_ascii=False, sort_keys=True) for c in cases)
    version = json.dumps(torch.__version__.partition("+")[0])
    text = f'{{"torch": {version}, "cases": [\n{lines}\n]}}\n'
    (out / "cases.json").write_text(text, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--big", action="store_true", help="also checkpoints beyond 4 GiB, in sparse files"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    # Asked to end, end as after Ctrl-C: the ranks' processes are ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    quiet()

    out = emptied(options.out)
    makers = [single, variants, hugging, ranks] + ([big] if options.big else [])
    cases = [case for maker in makers for case in maker.make(out)]
    write_list(out, cases)
    for case in cases:
        print(case.summary())
    print(f"{len(cases)} cases in {out}")


if __name__ == "__main__":
    sys.exit(main())
