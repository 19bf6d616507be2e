"""One rank of a job that trains with somebody else's loop; prints the ids that it was given. For test_trainers.py."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
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


def by_hugging_face_with_saves(loader: DataLoader[object], model: Model, resume: str = "", **options: Any) -> None:
    """As the documentation has it. Saves in the middle of an epoch, at its end, and in the middle of the next."""
    import transformers

    dataset = loader.dataset
    assert isinstance(dataset, TokenDataset)

    class SaveStream(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_save = state.global_step in (5, len(dataset), len(dataset) + 3)

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                path = Path(args.output_dir, f"checkpoint-{state.global_step}", "stream.json")
                path.write_text(json.dumps(dataset.state_dict()))

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self) -> DataLoader[object]:
            return loader

    if resume and options.pop("loads_state", True):
        dataset.load_state_dict(json.loads(Path(resume, "stream.json").read_text()))
        if dataset.loader.steps_left == 0:
            dataset.set_epoch(dataset.loader.epoch + 1)
    arguments = transformers.TrainingArguments(
        output_dir=sys.argv[4], num_train_epochs=EPOCHS, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
        ignore_data_skip=options.pop("ignore_data_skip", True),
    )  # fmt: skip
    Trainer(model=model, args=arguments, callbacks=[SaveStream()]).train(resume_from_checkpoint=resume or None)


def by_hugging_face_that_skips(loader: DataLoader[object], model: Model, resume: str = "") -> None:
    by_hugging_face_with_saves(loader, model, resume, ignore_data_skip=False)


def by_hugging_face_that_skips_alone(loader: DataLoader[object], model: Model, resume: str = "") -> None:
    by_hugging_face_with_saves(loader, model, resume, ignore_data_skip=False, loads_state=False)


def by_lightning_with_saves(loader: DataLoader[object], model: Model, resume: str = "") -> None:
    """As the documentation has it. Saves in the middle of an epoch, at its end as Lightning does by itself, and in the middle of the next."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    dataset = loader.dataset
    assert isinstance(dataset, TokenDataset)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any) -> torch.Tensor:
            self.batch = batch
            return self.model(**batch)["loss"]

        def on_train_batch_end(self, *_: Any) -> None:
            if self.global_step in (5, len(dataset) + 3):
                self.trainer.save_checkpoint(Path(sys.argv[4], f"checkpoint-{self.global_step}"))

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["stream"] = dataset.state_dict(after=self.batch)

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            dataset.load_state_dict(checkpoint["stream"])
            if dataset.loader.steps_left == 0:
                dataset.set_epoch(dataset.loader.epoch + 1)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    at_ends = ModelCheckpoint(sys.argv[4], filename="checkpoint-{step}", auto_insert_metric_name=False, save_top_k=-1)
    at_ends.FILE_EXTENSION = ""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=EPOCHS, accelerator="cpu", devices=1, callbacks=[at_ends], **quiet)
    trainer.fit(Module(), loader, ckpt_path=resume or None, weights_only=False)


def by_hugging_face_prepared(loader: DataLoader[object], model: Model) -> None:
    by_hugging_face(loader, model, is_prepared=True)


WAYS = {name.removeprefix("by_"): way for name, way in list(globals().items()) if name.startswith("by_")}

if __name__ == "__main__":
    name, data, workers, directory, *resume = sys.argv[1:]
    dataset = TokenDataset(data, **SETTINGS)
    model = Model()
    WAYS[name](DataLoader(dataset, batch_size=None, num_workers=int(workers)), model, *resume)
    (Path(directory) / f"seen-{dataset.loader.rank}.json").write_text(json.dumps(model.seen))
    if dist.is_initialized():
        # A process that ends with a group aborts now and then, while torch takes its threads apart; and none may leave before the others.
        dist.barrier()
        dist.destroy_process_group()
