"""A training run to believe in: killed in the middle, continued on another number of ranks, and nothing shows.

    python train_gpt.py [DIRECTORY]

trains a small GPT twice on the same data: once on two ranks without a break; once on two ranks until one of them is killed (SIGKILL),
then on three. Model, optimizer and data stream are saved together, as one distributed checkpoint of torch, and read by
`shardfeed.checkpoint`. It then compares: the second job must have begun where the last checkpoint was saved, every step must have seen
the same tokens, and the losses must agree to nine digits. `losses.png` shows the curves.

Under torchrun it is one rank of such a run: `torchrun --nproc-per-node=2 train_gpt.py rank --help`.
"""

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from shardfeed import TokenLoader
from shardfeed import checkpoint as shardfeed_checkpoint
from torch import nn
from torch.nn import functional

VOCABULARY, SEQ_LEN, GLOBAL_BATCH = 128, 64, 12
SAVE_EVERY, KILLED_RANK = 10, 1

#: A job takes a tenth of it.
JOB_SECONDS_MAX = 240


class Block(nn.Module):
    """Attention and what follows it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mix = nn.LayerNorm(width), nn.LayerNorm(width)
        self.ask, self.answer = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mix = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, may_look: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        query, key, value = (
            part.view(rows, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.ask(self.before_attention(x)).chunk(3, dim=-1)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=may_look)
        x = x + self.answer(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.mix(self.before_mix(x))


class Gpt(nn.Module):
    """Small, and in float64: what two runs differ by is then not rounding."""

    def __init__(self, width: int = 48, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(SEQ_LEN, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, document_ids: torch.Tensor) -> torch.Tensor:
        # A token looks at those before it in its own document.
        same = document_ids.unsqueeze(1) == document_ids.unsqueeze(2)
        may_look = (same & torch.ones_like(same).tril()).unsqueeze(1)
        x = self.tokens(input_ids) + self.places(position_ids)
        for block in self.blocks:
            x = block(x, may_look)
        logits: torch.Tensor = self.head(self.last(x))
        return logits


def digest(rows: torch.Tensor) -> int:
    """Of a rank's rows; added up over ranks it is the step's, however its rows were divided."""
    hashes = (hashlib.blake2b(row.numpy().tobytes(), digest_size=7).digest() for row in rows)
    return sum(int.from_bytes(each, "little") for each in hashes) % 2**56


class Line(NamedTuple):
    """What the log says of a step."""

    step: int
    loss: float
    tokens: int


def last_checkpoint(checkpoints: Path) -> Path | None:
    """The last complete one: its metadata is what torch writes last."""
    return max((metadata.parent for metadata in checkpoints.glob("step-*/.metadata")), default=None)


def train(data: Path, checkpoints: Path, log: Path, steps: int, save_every: int, kill_at: int | None) -> None:
    """One rank."""
    # Several ranks may share a device, which NCCL does not allow.
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    model = Gpt().double().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = TokenLoader(data, seq_len=SEQ_LEN, global_batch=GLOBAL_BATCH, seed=7, eos_id=1, threads=1)
    saved = last_checkpoint(checkpoints)
    if saved:
        # An optimizer has nothing to load into before its first step.
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader}
        dcp.load(state, storage_reader=shardfeed_checkpoint.Reader(saved))
        # Tensors were filled in place; what is no tensor, such as the learning rate, is taken over here.
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    with log.open("a") as lines:
        while True:
            for batch in loader:
                number = batch.epoch * len(loader) + batch.step
                if number >= steps:
                    dist.destroy_process_group()
                    return
                labels = batch["labels"].to(device)
                logits = model(*(batch[name].to(device) for name in ("input_ids", "position_ids", "document_ids")))
                loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
                # Weighted by tokens: ranks may have different numbers of them.
                totals = torch.tensor([loss.item(), batch.valid_labels], dtype=torch.float64)
                dist.all_reduce(totals)
                (loss / totals[1]).backward()
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                optimizer.step()
                optimizer.zero_grad()
                # Rank 0 needs one more exchange to log this step: so the log always ends with the step before.
                if kill_at == number and rank == KILLED_RANK:
                    os.kill(os.getpid(), signal.SIGKILL)
                tokens = torch.tensor(digest(batch["input_ids"]))
                dist.all_reduce(tokens)
                if rank == 0:
                    line = Line(number, (totals[0] / totals[1]).item(), int(tokens) % 2**56)
                    print(json.dumps(line._asdict()), file=lines, flush=True)
                if (number + 1) % save_every == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader}
                    dcp.save(state, checkpoint_id=checkpoints / f"step-{number + 1:06}")


def write_data(directory: Path) -> None:
    """Documents in which what comes next can be learnt."""
    import pyarrow
    import pyarrow.parquet

    dice = random.Random(0)
    follows = [[dice.randrange(2, VOCABULARY) for _ in range(3)] for _ in range(VOCABULARY)]
    directory.mkdir(parents=True)
    for file in range(4):
        documents = []
        for _ in range(100):
            document = [dice.randrange(2, VOCABULARY)]
            while dice.random() > 0.01:
                document.append(dice.choice(follows[document[-1]]))
            documents.append(document)
        table = pyarrow.table({"input_ids": pyarrow.array(documents, type=pyarrow.list_(pyarrow.int32()))})
        pyarrow.parquet.write_table(table, directory / f"part-{file}.parquet", row_group_size=50)


def torchrun(ranks: int, directory: Path, name: str, steps: int, kill_at: int | None = None) -> str:
    """Runs a job of so many ranks; what it said of errors."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", __file__, "rank"]
    command += [str(directory / "data"), str(directory / name), str(directory / f"{name}.jsonl"), str(steps)]
    if kill_at is not None:
        command += ["--kill-at", str(kill_at)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as job:
        try:
            errors = job.communicate(timeout=JOB_SECONDS_MAX)[1]
        except BaseException:
            # Asked to end, it ends its ranks first, each of which is a process group of its own; killed, it would leave them.
            job.terminate()
            try:
                job.communicate(timeout=60)
            finally:
                job.kill()
            raise
    if job.returncode and kill_at is None:
        sys.exit(f"{name} on {ranks} ranks failed:\n{errors}")
    return errors


def read_log(path: Path) -> list[Line]:
    """Empty if no step was done."""
    if not path.exists():
        return []
    return [Line(**json.loads(line)) for line in path.read_text().splitlines()]


def check_killed(errors: str) -> None:
    """A job that failed for another reason shows nothing."""
    # torchrun reports a rank in lines such as "rank      : 1 (local_rank: 1)" and "exitcode  : -9 (pid: 4711)".
    if not re.search(rf"rank +: {KILLED_RANK} .*\n +exitcode +: -{int(signal.SIGKILL)} ", errors):
        sys.exit(f"torchrun should have reported that rank {KILLED_RANK} was killed (SIGKILL), but it reported:\n{errors}")


def check_steps(job: str, lines: list[Line], expected: range) -> None:
    """Each step once and in order, and no other."""
    steps = [line.step for line in lines]
    if steps != list(expected):
        sys.exit(f"the {job} job should have logged steps {expected[0]} to {expected[-1]}, each once, but it logged {steps}")


def check_checkpoint(found: Path | None, expected: Path) -> None:
    if found != expected:
        sys.exit(f"the last complete checkpoint of the killed job should be {expected}, but it is {found}")


def check_same(whole: list[Line], lines: list[Line]) -> float:
    """How far the losses of a step are apart, at most."""
    apart = 0.0
    for line in lines:
        same = whole[line.step]
        if line.tokens != same.tokens:
            sys.exit(f"step {line.step} has seen other tokens than without a break")
        step_apart = abs(line.loss / same.loss - 1)
        # Not `>=`: no comparison with NaN holds.
        if not step_apart < 1e-9:
            sys.exit(f"step {line.step} has loss {line.loss}, but {same.loss} without a break: they differ by {step_apart:.1e}")
        apart = max(apart, step_apart)
    return apart


def plot(directory: Path, whole: list[Line], killed: list[Line], continued: list[Line]) -> Path:
    """All curves in one picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for lines, color, width, label in (
        (whole, "lightskyblue", 5, "2 ranks, without a break"),
        (killed, "black", 1.2, "2 ranks, then killed …"),
        (continued, "tab:red", 1.2, "… and continued on 3 from the last checkpoint"),
    ):
        axes.plot([line.step for line in lines], [line.loss for line in lines], color=color, linewidth=width, label=label)
    axes.axvline(len(killed), color="gray", linestyle=":", linewidth=1)
    axes.set(xlabel="step", ylabel="loss", title="A run that was killed, and one that was not")
    axes.legend()
    path = directory / "losses.png"
    figure.savefig(path, dpi=120)
    return path


def compare(directory: Path, steps: int, kill_at: int) -> None:
    """Trains with and without a break, and compares."""
    if not (directory / "data").exists():
        write_data(directory / "data")
    for name in ("whole", "broken"):
        # What an earlier run left would be continued.
        shutil.rmtree(directory / name, ignore_errors=True)
        (directory / f"{name}.jsonl").unlink(missing_ok=True)
    print(f"training {steps} steps on 2 ranks")
    torchrun(2, directory, "whole", steps)
    whole = read_log(directory / "whole.jsonl")
    check_steps("whole", whole, range(steps))
    print(f"training on 2 ranks; rank {KILLED_RANK} is killed in step {kill_at}")
    check_killed(torchrun(2, directory, "broken", steps, kill_at))
    killed = read_log(directory / "broken.jsonl")
    check_steps("killed", killed, range(kill_at))
    saved_steps = kill_at - kill_at % SAVE_EVERY
    check_checkpoint(last_checkpoint(directory / "broken"), directory / "broken" / f"step-{saved_steps:06}")
    print(f"continuing on 3 ranks, from the checkpoint of {saved_steps} steps")
    torchrun(3, directory, "broken", steps)
    continued = read_log(directory / "broken.jsonl")[len(killed) :]
    # Equal losses alone do not show that anything was loaded: a job that begins anew has them, too.
    check_steps("continued", continued, range(saved_steps, steps))
    apart = check_same(whole, killed + continued)
    if not whole[-1].loss < 0.7 * whole[0].loss:
        sys.exit(f"nothing was learnt: the loss was {whole[0].loss}, and is {whole[-1].loss}")
    epochs = steps / len(TokenLoader(directory / "data", seq_len=SEQ_LEN, global_batch=GLOBAL_BATCH, eos_id=1, rank=0, world_size=1))
    picture = plot(directory, whole, killed, continued)
    print(f"{steps} steps, {epochs:.2f} epochs: the same tokens in each, losses equal to {apart:.1e}; see {picture}")


def main() -> None:
    if sys.argv[1:2] == ["rank"]:
        parser = argparse.ArgumentParser(prog="train_gpt.py rank", description="One rank of a run, under torchrun.")
        parser.add_argument("data", type=Path)
        parser.add_argument("checkpoints", type=Path)
        parser.add_argument("log", type=Path)
        parser.add_argument("steps", type=int)
        parser.add_argument("--save-every", type=int, default=SAVE_EVERY)
        parser.add_argument("--kill-at", type=int)
        arguments = parser.parse_args(sys.argv[2:])
        train(**vars(arguments))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?", default=Path("train_gpt"), help="where everything goes")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--kill-at", type=int, default=34)
    arguments = parser.parse_args()
    if not SAVE_EVERY <= arguments.kill_at < arguments.steps:
        parser.error(f"--kill-at must be at least {SAVE_EVERY}, where the first checkpoint is, and less than --steps")
    compare(arguments.directory, arguments.steps, arguments.kill_at)


if __name__ == "__main__":
    main()
