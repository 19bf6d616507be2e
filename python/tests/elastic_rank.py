"""One rank of a job that notes what it reads: `elastic_rank.py DATA NOTES STATE STOP`. Run by torchrun.

Every step ends with a collective, as a training step does; then rank 0 saves where the stream stands. In step STOP rank 0 is killed, and
torchrun ends the others: they have noted the step, and nobody has saved it.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from shardfeed import TokenLoader

data, notes, saved, stop = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
loader = TokenLoader(data, seq_len=32, global_batch=8, seed=7)
if saved.exists():
    loader.load_state_dict(json.loads(saved.read_text()))
with (notes / f"{os.getpid()}.jsonl").open("w") as file:
    for batch in loader:
        print(json.dumps([batch.step, batch["input_ids"].tolist()]), file=file, flush=True)
        if batch.step == stop:
            if rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
        labels = torch.tensor(batch.valid_labels)
        torch.distributed.all_reduce(labels)
        assert labels > 0
        if rank == 0:
            unfinished = saved.with_suffix(".tmp")
            unfinished.write_text(json.dumps(loader.state_dict()))
            unfinished.rename(saved)
torch.distributed.destroy_process_group()
