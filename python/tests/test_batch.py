"""A batch stays one, with what it says of itself, on its way to a device and through wrappers."""

import copy
import pickle

import pytest
import torch
from shardfeed import TokenLoader

SETTINGS = {"seq_len": 32, "global_batch": 8, "seed": 7}
TOLD = ("step", "epoch", "tokens", "valid_labels")


def test_copies_keep_what_a_batch_says(data: str) -> None:
    batch = next(iter(TokenLoader(data, **SETTINGS)))
    for other in (batch.to("cpu"), batch.copy(), copy.copy(batch), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
        assert [getattr(other, name) for name in TOLD] == [getattr(batch, name) for name in TOLD]
        assert all(torch.equal(other[name], batch[name]) for name in batch) and set(other) == set(batch)
    meta = batch.to("meta", non_blocking=True)
    assert {tensor.device.type for tensor in meta.values()} == {"meta"} and meta.step == batch.step


def test_a_batch_made_of_anothers_tensors_says_what_it_lacks(data: str) -> None:
    batch = next(iter(TokenLoader(data, **SETTINGS)))
    made = type(batch)(batch.items())
    with pytest.raises(AttributeError, match="Batch.to"):
        _ = made.step
    with pytest.raises(AttributeError, match="no attribute 'stap'"):
        _ = made.stap
    assert "step" not in repr(made) and "input_ids" in repr(made)
    assert repr(batch).startswith("Batch(step=0, epoch=0,")


def test_accelerate_keeps_what_a_batch_says_on_the_way_to_a_device(data: str) -> None:
    send_to_device = pytest.importorskip("accelerate.utils").send_to_device
    batch = next(iter(TokenLoader(data, **SETTINGS)))
    assert send_to_device(batch, "meta").step == 0


def test_arrays_of_a_batch_are_tensors_of_their_own(data: str) -> None:
    batch = next(iter(TokenLoader(data, **SETTINGS)))
    before = {name: (tensor.clone(), tensor._version) for name, tensor in batch.items()}
    batch["labels"].fill_(-100)
    for name, (values, version) in before.items():
        if name != "labels":
            assert torch.equal(batch[name], values) and batch[name]._version == version
    assert len(pickle.dumps(batch["input_ids"])) < 2 * batch["input_ids"].nbytes, "one array is sent, not all of them"


def test_an_output_that_is_none_is_refused_before_anything_is_read(data: str) -> None:
    with pytest.raises(ValueError, match='"torch" or "numpy"'):
        TokenLoader(data, **SETTINGS, output="jax")  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is something to pin memory for")
def test_pinning_that_cannot_work_takes_no_batch(data: str) -> None:
    loader = TokenLoader(data, **SETTINGS, pin_memory=True)
    with pytest.raises(RuntimeError):
        next(iter(loader))
    assert loader.state_dict()["position"] == 0
