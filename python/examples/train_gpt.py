"""A training run to believe in: killed in the middle, continued on another number of ranks, and nothing shows.

    python train_gpt.py [DIRECTORY]

trains a small GPT twice on the same data: once on two ranks without a break; once on two ranks until one of them is killed (SIGKILL), then
on three. Model, optimizer and data stream are saved together, as one distributed checkpoint of torch, and read by `shardfeed.checkpoint`. It
then compares: every step must have seen the same tokens, and the losses must agree to nine digits. `losses.png` shows both curves.

Under torchrun it is one rank of such a run: `torchrun --nproc-per-node=2 train_gpt.py rank --help`.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from shardfeed import TokenLoader
from shardfeed import checkpoint as shardfeed_checkpoint
from torch import nn
from torch.nn import functional

VOCABULARY, SEQ_LEN, GLOBAL_BATCH = 128, 64, 12

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
    saved = sorted(checkpoints.glob("step-*/.metadata"))
    if saved:
        # An optimizer has nothing to load into before its first step.
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader}
        dcp.load(state, storage_reader=shardfeed_checkpoint.Reader(saved[-1].parent))
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
                tokens = torch.tensor(digest(batch["input_ids"]))
                dist.all_reduce(tokens)
                if kill_at == number and rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                if rank == 0:
                    told = {"step": number, "loss": (totals[0] / totals[1]).item(), "tokens": tokens.item() % 2**56}
                    print(json.dumps(told), file=lines, flush=True)
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


def torchrun(ranks: int, directory: Path, name: str, steps: int, kill_at: int | None = None) -> int:
    """Runs a job of so many ranks; how it ended."""
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
    return job.returncode


def read_log(path: Path) -> dict[int, dict[str, float]]:
    """By step. What a run did after its last checkpoint is done again by the next: the later one counts."""
    lines = map(json.loads, path.read_text().splitlines())
    return {line["step"]: line for line in lines}


def plot(directory: Path, whole: dict[int, dict[str, float]], broken: dict[int, dict[str, float]], killed_at: int) -> Path:
    """Both curves in one picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot(list(whole), [line["loss"] for line in whole.values()], color="tab:blue", linewidth=5, alpha=0.4, label="2 ranks, without a break")
    before = [step for step in broken if step < killed_at]
    after = [step for step in broken if step >= killed_at - 1]
    axes.plot(before, [broken[step]["loss"] for step in before], color="black", linewidth=1.2, label="2 ranks, then killed …")
    axes.plot(after, [broken[step]["loss"] for step in after], color="tab:red", linewidth=1.2, label="… and continued on 3")
    axes.axvline(killed_at, color="gray", linestyle=":", linewidth=1)
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
    print(f"training on 2 ranks; rank 1 is killed in step {kill_at}")
    assert torchrun(2, directory, "broken", steps, kill_at) != 0, "it was killed"
    print("continuing on 3 ranks")
    torchrun(3, directory, "broken", steps)
    whole, broken = read_log(directory / "whole.jsonl"), read_log(directory / "broken.jsonl")
    assert sorted(whole) == sorted(broken) == list(range(steps)), "every step was done"
    assert all(whole[step]["tokens"] == broken[step]["tokens"] for step in whole), "every step has seen the same tokens"
    apart = max(abs(broken[step]["loss"] / whole[step]["loss"] - 1) for step in whole)
    assert apart < 1e-9, f"losses differ by {apart:.1e}"
    assert whole[steps - 1]["loss"] < 0.7 * whole[0]["loss"], "it has learnt something"
    epochs = steps / len(TokenLoader(directory / "data", seq_len=SEQ_LEN, global_batch=GLOBAL_BATCH, eos_id=1, rank=0, world_size=1))
    print(f"{steps} steps, {epochs:.2f} epochs: the same tokens in each, losses equal to {apart:.1e}; see {plot(directory, whole, broken, kill_at)}")


def main() -> None:
    if sys.argv[1:2] == ["rank"]:
        parser = argparse.ArgumentParser(prog="train_gpt.py rank", description="One rank of a run, under torchrun.")
        parser.add_argument("data", type=Path)
        parser.add_argument("checkpoints", type=Path)
        parser.add_argument("log", type=Path)
        parser.add_argument("steps", type=int)
        parser.add_argument("--save-every", type=int, default=10)
        parser.add_argument("--kill-at", type=int)
        arguments = parser.parse_args(sys.argv[2:])
        train(**vars(arguments))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?", default=Path("train_gpt"), help="where everything goes")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--kill-at", type=int, default=34)
    arguments = parser.parse_args()
    compare(arguments.directory, arguments.steps, arguments.kill_at)


if __name__ == "__main__":
    main()
