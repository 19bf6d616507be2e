"""Torch's `Metadata` from the bytes of `.metadata`, without unpickling them.

The native parser says what the pickle would do; here the few classes that torch's metadata consist of are made from that, and
nothing else is: a class that is not known becomes an `Unknown`, which has a name and does nothing.
"""

from __future__ import annotations

import pathlib
import reprlib
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from shardfeed._native import PickledCall, PickledGlobal, ShardfeedError, read_pickle

_MEMORY_FORMATS = {
    0: torch.contiguous_format,
    1: torch.channels_last,
    2: torch.preserve_format,
    "TORCH_CONTIGUOUS_FORMAT": torch.contiguous_format,
    "TORCH_CHANNELS_LAST": torch.channels_last,
    "TORCH_PRESERVE_FORMAT": torch.preserve_format,
}

_PROPERTIES = ("dtype", "layout", "requires_grad", "memory_format", "pin_memory", "strides")

# Torch 2.15 knows strides; before, nobody asked for them.
_KNOWN_PROPERTIES = frozenset(TensorProperties.__dataclass_fields__)


class Unknown:
    """Something in the metadata that is neither torch's nor plain: its name is all that is known of it."""

    def __init__(self, description: str) -> None:
        self.description = description

    def __repr__(self) -> str:
        return self.description

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unknown) and other.description == self.description

    def __hash__(self) -> int:
        return hash(self.description)


class _Newer(Exception):
    """Nothing is wrong with the checkpoint, but this torch is too old for it."""


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxother, _SHORT.maxstring = 3, 200, 200

_ELSE = "copy the checkpoint again, or load another one"


def parse_metadata(pickled: bytes) -> Metadata:
    """From the bytes of `.metadata`. Raises `ShardfeedError` if they are damaged or something else."""
    try:
        root = read_pickle(pickled)
        state = root.state if isinstance(root, PickledCall) else None
        # Whatever the class is called: Megatron has one of its own with the same fields.
        if not isinstance(state, dict) or "storage_data" not in state or "state_dict_metadata" not in state:
            raise ShardfeedError(f"not the metadata of a distributed checkpoint, but {_shown(root)}")
        return _metadata(state)
    except _Newer as error:
        raise ShardfeedError(f"{error}; load it with one that does, or copy the checkpoint again") from None
    except ShardfeedError as error:
        raise ShardfeedError(f"{error}; {_ELSE}") from error
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError, OverflowError) as error:
        raise ShardfeedError(f"damaged, or not written by torch.distributed.checkpoint: {error}; {_ELSE}") from error


def _metadata(state: dict[str, Any]) -> Metadata:
    metadata = Metadata(
        state_dict_metadata={_text(name): _entry(name, value) for name, value in _entries(state["state_dict_metadata"])},
        planner_data=_plain(state.get("planner_data")),
        storage_data=_storage_data(state["storage_data"]),
        storage_meta=_storage_meta(state.get("storage_meta")),
    )
    for name, value in state.items():
        if name not in ("state_dict_metadata", "planner_data", "storage_data", "storage_meta"):
            setattr(metadata, _text(name), _plain(value))
    return metadata


def _storage_data(stored: Any) -> dict[MetadataIndex, Any] | None:
    if stored is None:
        return None
    return {_index(key): _storage_info(value) for key, value in _entries(stored)}


def _index(call: Any) -> MetadataIndex:
    fields = _fields(call, "MetadataIndex")
    offset = fields.get("offset")
    return MetadataIndex(_text(fields["fqn"]), None if offset is None else _size(offset), fields.get("index"))


def _storage_info(call: Any) -> _StorageInfo:
    fields = _fields(call, "_StorageInfo")
    info = _StorageInfo(_text(fields["relative_path"]), _count(fields["offset"]), _count(fields["length"]))
    transforms = fields.get("transform_descriptors")
    if transforms is not None:
        info.transform_descriptors = [_text(transform) for transform in transforms]
    return info


def _entry(name: str, call: Any) -> TensorStorageMetadata | BytesStorageMetadata:
    class_name = _class(call).name
    if class_name == "BytesStorageMetadata":
        return BytesStorageMetadata()
    if class_name != "TensorStorageMetadata":
        raise ValueError(f"{name}: it is {_shown(call)}, which is not known here")
    fields = call.state
    chunks = [
        ChunkStorageMetadata(_size(chunk.state["offsets"]), _size(chunk.state["sizes"])) for chunk in fields["chunks"]
    ]
    return TensorStorageMetadata(_properties(fields["properties"]), _size(fields["size"]), chunks)


def _properties(call: Any) -> TensorProperties:
    state = call.state
    fields = state if isinstance(state, dict) else dict(zip(_PROPERTIES, state))
    values: dict[str, Any] = {"dtype": _named(fields["dtype"], torch.dtype)}
    if "layout" in fields:
        values["layout"] = _layout(fields["layout"])
    if "memory_format" in fields:
        values["memory_format"] = _memory_format(fields["memory_format"])
    for name in ("requires_grad", "pin_memory"):
        if name in fields:
            values[name] = bool(fields[name])
    if fields.get("strides") is not None and "strides" in _KNOWN_PROPERTIES:
        values["strides"] = tuple(_count(stride) for stride in fields["strides"])
    return TensorProperties(**values)


def _storage_meta(call: Any) -> StorageMeta | None:
    if call is None:
        return None
    meta = StorageMeta()
    for name, value in _fields(call, "StorageMeta").items():
        setattr(meta, _text(name), _plain(value))
    return meta


def _layout(value: Any) -> Any:
    # `torch.serialization._get_layout("torch.strided")`
    if isinstance(value, PickledCall) and _class(value).name == "_get_layout":
        found = getattr(torch, _text(value.args[0]).removeprefix("torch."), None)
        if isinstance(found, torch.layout):
            return found
        if found is None:
            raise _Newer(f"{value.args[0]} is no layout that torch {torch.__version__} knows")
    return _named(value, torch.layout)


def _memory_format(value: Any) -> torch.memory_format:
    # An enumeration's member, by its value or, as Python 3.11 pickles it, by its name.
    if isinstance(value, PickledCall):
        found = _MEMORY_FORMATS.get(value.args[-1])
        if found is not None:
            return found
        raise _Newer(f"{_shown(value)} is no memory format that this version of Shardfeed knows")
    raise ValueError(f"{_shown(value)} is no memory format")


def _named(value: Any, kind: type) -> Any:
    if isinstance(value, PickledGlobal) and value.module == "torch":
        found = getattr(torch, value.name, None)
        if isinstance(found, kind):
            return found
        if found is None and kind is torch.dtype:
            raise _Newer(f"torch.{value.name} is no dtype that torch {torch.__version__} knows")
    raise ValueError(f"{_shown(value)} is no {kind.__name__} that torch {torch.__version__} knows")


def _plain(value: Any, made: dict[int, Any] | None = None) -> Any:
    """Values that mean the same without torch, and the few of its classes that appear among them. `made`: what became of values, by
    their identity: one that lies in many places is made once, and lies in as many places again.
    """
    made = {} if made is None else made
    if id(value) in made:
        return made[id(value)]
    result: Any
    if isinstance(value, dict):
        result = {_plain(key, made): _plain(entry, made) for key, entry in value.items()}
    elif isinstance(value, list):
        result = [_plain(entry, made) for entry in value]
    elif isinstance(value, tuple):
        result = tuple(_plain(entry, made) for entry in value)
    elif isinstance(value, PickledGlobal):
        found = getattr(torch, value.name, None) if value.module == "torch" else None
        result = found if isinstance(found, (torch.dtype, torch.layout)) else Unknown(repr(value))
    elif isinstance(value, PickledCall):
        result = _object(value, made)
    else:
        return value
    made[id(value)] = result
    return result


def _object(call: PickledCall, made: dict[int, Any]) -> Any:
    if not isinstance(call.callable, PickledGlobal):
        return Unknown(repr(call))
    module, name = _class(call).module, _class(call).name
    if (module, name) == ("torch", "Size"):
        return _size(call)
    if module in ("pathlib", "pathlib._local") and name in ("PosixPath", "Path"):
        return pathlib.Path(*(_text(part) for part in call.args))
    if module in ("pathlib", "pathlib._local") and name in ("WindowsPath", "PureWindowsPath"):
        return pathlib.PureWindowsPath(*(_text(part) for part in call.args))
    if (module, name) == ("collections", "OrderedDict"):
        return {} if call.state is None else _plain(call.state, made)
    return Unknown(repr(call))


def _class(call: Any) -> PickledGlobal:
    if not isinstance(call, PickledCall):
        raise ValueError(f"{_shown(call)} where an object should be")
    found = call.callable
    # Protocols 0 and 1 make objects through a helper that is told the class.
    if isinstance(found, PickledGlobal) and found.name == "_reconstructor":
        found = call.args[0]
    if not isinstance(found, PickledGlobal):
        raise ValueError(f"{_shown(call)} is of no class")
    return found


def _fields(call: Any, class_name: str) -> dict[str, Any]:
    if _class(call).name != class_name or not isinstance(call.state, dict):
        raise ValueError(f"{_shown(call)} where a {class_name} should be")
    return call.state


def _entries(value: Any) -> Any:
    if isinstance(value, PickledCall):
        value = value.state or {}
    return value.items()


def _size(value: Any) -> torch.Size:
    if isinstance(value, PickledCall):
        (value,) = value.args
    return torch.Size([_count(number) for number in value])


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{_shown(value)} counts nothing")
    return value


def _shown(value: Any) -> str:
    """How errors show what was found: its beginning. Little that lies in many places may be endless once it is written out."""
    return _SHORT.repr(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is no text")
    return value
