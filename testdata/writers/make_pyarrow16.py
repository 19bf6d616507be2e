"""Make the files in which rows cross page borders.

    python make_pyarrow16.py     with requirements-pyarrow16.txt installed

Version 1 data pages may begin in the middle of a row.  pyarrow wrote such
pages for years, so stored data sets are full of them, but the pyarrow of
requirements.txt no longer does; nor do polars and DuckDB.  Hence an old
pyarrow, in an environment of its own.

make.py imports FILES from here to list and to check these files, without
making them: nothing at the top of this module may need the old pyarrow.
"""

from pathlib import Path

from rowsets import ROWSETS

HERE = Path(__file__).resolve().parent
WRITER = "pyarrow 16.1.0"

LEAF = "input_ids.list.element"

# name, row set, item type, whether list and items are required, note, options
FILES = [
    (
        "long_dict",
        "long",
        "int32",
        False,
        "dictionary",
        {"compression": "zstd", "data_page_size": 256, "write_batch_size": 64},
    ),
    (
        "long_plain",
        "long",
        "uint16",
        False,
        "no dictionary",
        {"compression": "zstd", "use_dictionary": False, "data_page_size": 1024},
    ),
    ("gaps_dict", "gaps", "int32", False, "dictionary", {}),
    (
        "gaps_plain",
        "gaps",
        "int64",
        False,
        "no dictionary, not compressed",
        {"compression": "none", "use_dictionary": False},
    ),
    (
        "gaps_delta",
        "gaps",
        "int32",
        False,
        "DELTA_BINARY_PACKED",
        {"use_dictionary": False, "column_encoding": {LEAF: "DELTA_BINARY_PACKED"}},
    ),
    ("required", "empties", "uint32", True, "list and items required", {}),
    (
        "fallback",
        "plain",
        "int32",
        False,
        "dictionary given up mid-chunk",
        {"dictionary_pagesize_limit": 256, "row_group_size": 20},
    ),
    ("nostats", "plain", "int32", False, "no statistics", {"write_statistics": False}),
]


def file_name(name):
    return f"pyarrow16_{name}.parquet"


def main():
    import pyarrow as pa
    import pyarrow.parquet as pq

    if f"pyarrow {pa.__version__}" != WRITER:
        raise SystemExit(f"this needs {WRITER}, not {pa.__version__}")
    for name, rowset, item, required, _, options in FILES:
        kind = pa.list_(pa.field("item", pa.type_for_alias(item), nullable=not required))
        schema = pa.schema([pa.field("input_ids", kind, nullable=not required)])
        table = pa.Table.from_arrays([pa.array(ROWSETS[rowset], kind)], schema=schema)
        small = {"row_group_size": 13, "data_page_size": 128, "write_batch_size": 8}
        pq.write_table(table, HERE / file_name(name), **{**small, **options})


if __name__ == "__main__":
    main()
