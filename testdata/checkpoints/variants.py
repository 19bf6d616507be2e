"""Checkpoints as other versions and machines write them, made from real ones:
their metadata pickled again, or their items saved under another byte order.

The reader under test must give for each what torch gives for the original,
so that is what is recorded, and where torch can read the variant too (with
stand-ins for classes it would have to import) it is made to.
"""

import collections
import contextlib
import copyreg
import dataclasses
import datetime
import decimal
import enum
import functools
import io
import pathlib
import pickle
import sys
import types
import zipfile

import torch
from torch.distributed._shard.sharded_tensor.metadata import TensorProperties as OldProperties
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorProperties

from record import all_boxes, recorded
from single import attribute, copied, flat, save
from values import made, sample

# ---------------------------------------------------------------- pickling again


class Repickler(pickle.Pickler):
    """Pickles as usual, but types named in `rules` as the rule says."""

    def __init__(self, file, protocol, rules):
        super().__init__(file, protocol)
        self.rules = rules

    def reducer_override(self, value):
        rule = self.rules.get(type(value))
        return rule(value) if rule else NotImplemented


def repickle(directory, protocol=4, rules=None, edit=None):
    path = directory / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    if edit:
        metadata = edit(metadata) or metadata
    with path.open("wb") as file:
        Repickler(file, protocol, rules or {}).dump(metadata)


@contextlib.contextmanager
def modules(*classes):
    """Put classes where their `__module__` says they are, for as long as
    pickle looks for them there."""
    before = dict(sys.modules)
    for c in classes:
        parts = c.__module__.split(".")
        for i in range(1, len(parts)):
            sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(parts[i - 1]))
        # A new module even where there is one: Python 3.13 has a PosixPath of
        # its own, which must not be lost.
        if sys.modules.get(c.__module__) is before.get(c.__module__):
            sys.modules[c.__module__] = types.ModuleType(c.__module__)
        setattr(sys.modules[c.__module__], c.__qualname__, c)
    try:
        yield
    finally:
        sys.modules.clear()
        sys.modules.update(before)


# ---------------------------------------------------------------- metadata


def new_object(cls, state):
    """Pickled like an ordinary instance: made empty, then given its state."""
    return copyreg.__newobj__, (cls,), state


def without_strides(properties):
    return new_object(type(properties), properties.__getstate__()[:5])


def as_torch_2_0(metadata):
    """Fewer fields, and tensor properties of a class that has moved since."""
    del metadata.storage_meta, metadata.version
    for entry in metadata.state_dict_metadata.values():
        if hasattr(entry, "properties"):
            now = entry.properties
            entry.properties = OldProperties(
                now.dtype, now.layout, now.requires_grad, now.memory_format, now.pin_memory
            )


class PosixPath(str):
    """Stands in for Python 3.13's class, which torch never looks at."""

    __module__ = "pathlib._local"


MEGATRON = "megatron.core.dist_checkpointing.strategies.torch"


class MCoreMetadata(Metadata):
    __module__ = MEGATRON


class MCoreSavePlan:
    __module__ = MEGATRON


def with_mcore_data(metadata):
    plan = MCoreSavePlan()
    plan.items, plan.mcore_data = [], {"weight": {"nd_reformulated_orig_global_shape": (17, 23)}}
    metadata.mcore_data = {**plan.mcore_data, "plan": plan}


def as_mcore_metadata(metadata):
    with_mcore_data(metadata)
    other = MCoreMetadata.__new__(MCoreMetadata)
    other.__dict__.update(metadata.__dict__)
    return other


ACME = "acme.training"


class RunInfo:
    __module__ = ACME


class Tags(dict):
    __module__ = ACME


class Steps(list):
    __module__ = ACME


class Level(enum.Enum):
    __module__ = ACME
    HIGH = "high"


class Slotted:
    __module__ = ACME
    __slots__ = ("left", "right")


class Keyed:
    __module__ = ACME

    def __init__(self, *args, **named):
        pass

    def __getnewargs_ex__(self):
        return (1,), {"unit": "ms"}


def schedule():
    pass


schedule.__module__ = ACME


def with_unknown_globals(metadata):
    """One of each way in which pickle writes a value it knows nothing of,
    and of the standard values that metadata otherwise never holds."""
    info, slotted = RunInfo(), Slotted()
    slotted.left, slotted.right = 1.5, (None, True)
    info.itself = info
    info.unknown = [Tags(run="a"), Steps([1, 2]), slotted, Level.HIGH, schedule, RunInfo]
    info.plain = [
        1e300,
        float("inf"),
        -1,
        1 << 31,
        -(1 << 33),
        1 << 80,
        b"short",
        b"l" * 300,
        "e" * 300,
    ]
    info.sets = [
        {1, 2, 3},
        frozenset({"x"}),
        bytearray(b"array"),
        range(3),
        slice(1, 2),
        complex(1, 2),
    ]
    info.ordered = [collections.OrderedDict(a=1), collections.defaultdict(list, b=[1])]
    info.times = [
        datetime.datetime(2024, 2, 29, 12),
        datetime.timedelta(days=1),
        decimal.Decimal("1.5"),
    ]
    metadata.run_info = info


def with_named_arguments(metadata):
    """An object made with named arguments; before protocol 4 this would be
    written with `getattr`, which a careful reader may refuse to know."""
    with_unknown_globals(metadata)
    metadata.run_info.unknown.append(Keyed())


STAND_INS = (PosixPath, MCoreMetadata, MCoreSavePlan)
STAND_INS += (RunInfo, Tags, Steps, Slotted, Level, Keyed, schedule)


def string_path(metadata):
    metadata.storage_meta.checkpoint_id = "s3://bucket/run/step-100"


def metadata_variants(out):
    """The sample with odd names, and its metadata pickled in other ways."""
    state = sample() | {
        n: made(f"variants.{n}", (3,))
        for n in ("größe", "重み", "back\\slash", "line\nbreak", "n" * 300)
    }
    state |= {"nested": {"list": [made("variants.list", (2,)), 5]}}
    state |= {f"layer.{i}": made(f"variants.{i}", (i,), torch.uint8) for i in range(40)}
    save(out / "meta_original", state)
    original = recorded("meta_original", FileSystemReader(out / "meta_original"), flat(state))
    yield original

    def variant(name, readable=True, **how):
        directory = copied(out, "meta_original", f"meta_{name}")
        expected = dataclasses.replace(original, name=directory.name, path=directory.name)
        with modules(*STAND_INS):
            repickle(directory, **how)
            if readable:
                case = recorded(directory.name, FileSystemReader(directory), flat(state))
                if case != expected:
                    raise AssertionError(f"{name}: torch reads the variant differently")
        return expected

    for protocol in range(6):
        yield variant(f"protocol_{protocol}", protocol=protocol)
    yield variant("no_strides", rules={TensorProperties: without_strides})
    yield variant(
        "torch_2_0", protocol=2, rules={OldProperties: without_strides}, edit=as_torch_2_0
    )
    yield variant("string_path", edit=string_path)
    posix = type(pathlib.Path())
    yield variant("python_3_13_path", rules={posix: lambda p: (PosixPath, (str(p),))})
    # Only Windows can make such a path, so torch reads this only there.
    yield variant(
        "windows_path",
        readable=False,
        rules={posix: lambda p: (pathlib.WindowsPath, ("C:\\", "runs", p.name))},
    )
    for protocol in (2, 4):
        yield variant(f"megatron_{protocol}", protocol=protocol, edit=with_mcore_data)
        yield variant(f"megatron_class_{protocol}", protocol=protocol, edit=as_mcore_metadata)
    yield variant("unknown_globals_2", protocol=2, edit=with_unknown_globals)
    yield variant("unknown_globals_4", protocol=4, edit=with_named_arguments)
    yield variant("unknown_globals_5", protocol=5, edit=with_named_arguments)


# ---------------------------------------------------------------- items


def swapped(tensor):
    """The same numbers as a machine of the other byte order has them."""
    number = tensor.dtype.itemsize // (2 if tensor.dtype.is_complex else 1)
    other = tensor.clone()
    other.untyped_storage()._byteswap(number)
    return other


def byte_orders(out):
    """torch.save writes the byte order that sys.byteorder names, so with that
    changed and the bytes swapped it writes what another machine would."""
    state = {
        "float32": made("big.float32", (5, 7)),
        "float32_transposed": made("big.transposed", (5, 7)).t(),
        "int16": made("big.int16", (9,), torch.int16),
        "int64": made("big.int64", (3, 3), torch.int64),
        "uint8": made("big.uint8", (13,), torch.uint8),
        "bfloat16": made("big.bfloat16", (4, 4), torch.bfloat16),
        "float64": made("big.float64", (), torch.float64),
        "complex64": made("big.complex64", (3, 2), torch.complex64),
        "complex128": made("big.complex128", (2, 2), torch.complex128),
        "bool": made("big.bool", (11,), torch.bool),
    }
    with attribute(sys, "byteorder", "big"):
        save(out / "big_endian", {k: swapped(t) for k, t in state.items()} | {"step": 5})
    yield recorded("big_endian", FileSystemReader(out / "big_endian"), state, all_boxes(state))

    # Dtypes without a storage class of their own are saved as bytes, which
    # torch does not swap: it gives numbers in the wrong order.  What torch
    # gives is recorded all the same.
    state = {
        str(d).removeprefix("torch."): made(f"big.{d}", (5,), d)
        for d in (torch.uint16, torch.uint32, torch.uint64, torch.complex32, torch.float8_e5m2)
    }
    with attribute(sys, "byteorder", "big"):
        save(out / "big_endian_untyped", state)
    yield recorded("big_endian_untyped", FileSystemReader(out / "big_endian_untyped"), state)


def byte_order_last(out):
    """Told not to record the byte order, torch.save does so nevertheless, but
    after the data instead of before it."""
    late_save = functools.partial(torch.save, _disable_byteorder_record=True)
    with attribute(torch, "save", late_save):
        save(out / "byte_order_last", sample())
    return recorded("byte_order_last", FileSystemReader(out / "byte_order_last"), flat(sample()))


def zipped_again(item, keep):
    """The item as Python's zipfile writes it: sizes in the local headers, no
    alignment, no zip64 at the end, and without the records torch 2.0 lacked."""
    again = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(item)) as old,
        zipfile.ZipFile(again, "w", zipfile.ZIP_STORED) as new,
    ):
        for name in old.namelist():
            if keep(name):
                new.writestr(zipfile.ZipInfo(name), old.read(name))
    return again.getvalue()


def other_zip(out):
    """Items without a byte order, as before torch 2.1, and zipped by another
    program than torch."""
    save(out / "other_zip", sample())
    path, listed = out / "other_zip/__0_0.distcp", out / "other_zip/.metadata"
    data, metadata = path.read_bytes(), pickle.loads(listed.read_bytes())
    later = ("byteorder", ".format_version", ".storage_alignment", ".data/serialization_id")
    with path.open("wb") as file:
        for place in metadata.storage_data.values():
            item = data[place.offset : place.offset + place.length]
            item = zipped_again(item, lambda name: name.partition("/")[2] not in later)
            place.offset, place.length = file.tell(), len(item)
            file.write(item)
    listed.write_bytes(pickle.dumps(metadata, 4))
    return recorded("other_zip", FileSystemReader(out / "other_zip"), flat(sample()))


def make(out):
    yield from metadata_variants(out)
    yield from byte_orders(out)
    yield byte_order_last(out)
    yield other_zip(out)
