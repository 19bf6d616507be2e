"""One rank of a job that trains with somebody else's loop; prints the ids that it was given. For test_trainers.py."""

import json
import sys
from pathlib import Path

import torch
from shardfeed.torch import TokenDataset
from torch.utils.data import DataLoader

SETTINGS = {"seq_len": 32, "global_batch": 8, "seed": 7, "arrays": ["labels"]}
EPOCHS = 2


class Model(torch.nn.Module):
    """Learns nothing, and writes down what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[list[list[int]]] = []

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(input_ids.tolist())
        return {"loss": self.weight * (labels != -100).sum()}


def by_lightning(loader: DataLoader[object], model: Model) -> None:
    """Lightning calls `batch.to`, so that steps and all stay known."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.steps = model, list[tuple[int, int]]()

        def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            self.steps.append((batch.epoch, batch.step))  # type: ignore[attr-defined]
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    module = Module()
    ranks = int(loader.dataset.loader.world_size)  # type: ignore[attr-defined]
    strategy = "ddp" if ranks > 1 else "auto"
    lightning.Trainer(max_epochs=EPOCHS, accelerator="cpu", devices=ranks, strategy=strategy, **quiet).fit(module, loader)
    of_epoch = len(loader)
    assert module.steps == [(epoch, step) for epoch in range(EPOCHS) for step in range(of_epoch)]


def by_hugging_face(loader: DataLoader[object], model: Model, *, is_prepared: bool = False) -> None:
    """Its Trainer would make batches of our batches, and divide them among ranks again: it is given the loader as it is."""
    import transformers

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self) -> DataLoader[object]:
            return self.accelerator.prepare(loader) if is_prepared else loader

    arguments = transformers.TrainingArguments(
        output_dir=sys.argv[4], num_train_epochs=EPOCHS, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True
    )
    Trainer(model=model, args=arguments).train()


def by_hugging_face_prepared(loader: DataLoader[object], model: Model) -> None:
    by_hugging_face(loader, model, is_prepared=True)


WAYS = {way.__name__.removeprefix("by_"): way for way in (by_lightning, by_hugging_face, by_hugging_face_prepared)}

if __name__ == "__main__":
    name, data, workers, directory = sys.argv[1:5]
    dataset = TokenDataset(data, **SETTINGS)
    model = Model()
    WAYS[name](DataLoader(dataset, batch_size=None, num_workers=int(workers)), model)
    (Path(directory) / f"seen-{dataset.loader.rank}.json").write_text(json.dumps(model.seen))
