"""Makes Parquet files whose texts are stored by their lengths, or by what they have of the one before. Row groups have as many rows
as fill the blocks of those lengths, and some more or less. What is in a row follows from its number, as `parquet_dataset.rs` knows.

    pip install pyarrow==26.0.1 duckdb==2.0.0 && python make.py
"""

import pathlib

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).parent
ROW_GROUPS = [1, 2, 31, 32, 33, 34, 64, 65, 128, 129, 130, 257]


def text(number):
    return None if number % 7 == 3 else "row " + "ab" * (number % 9) + str(number // 3)


def row(number):
    return {
        "text": text(number),
        "required": text(number) or "",
        "texts": [text(number + i) for i in range(number % 4)],
    }


def row_groups():
    first = 0
    for rows in ROW_GROUPS:
        yield [row(number) for number in range(first, first + rows)]
        first += rows


schema = pa.schema([("text", pa.string()), pa.field("required", pa.binary(), nullable=False), ("texts", pa.list_(pa.string()))])
leaves = ["text", "required", "texts.list.element"]
for kind in ("DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"):
    for version in ("1.0", "2.0"):
        path = HERE / f"pyarrow_{kind.lower()}_v{version[0]}.parquet"
        encodings = dict.fromkeys(leaves, kind)
        options = {"use_dictionary": False, "column_encoding": encodings, "data_page_version": version, "compression": "zstd"}
        with pq.ParquetWriter(path, schema, **options) as writer:
            for rows in row_groups():
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
table = pa.Table.from_pylist([row for rows in row_groups() for row in rows], schema=schema)
# Texts in different rows are different often enough for this writer to choose lengths.
copy = "COPY table TO '{}' (FORMAT parquet, PARQUET_VERSION v2, DICTIONARY_SIZE_LIMIT 1, ROW_GROUP_SIZE 2048)"
duckdb.sql(copy.format(HERE / "duckdb_v2.parquet").replace("table", '"table"', 1))
for path in sorted(HERE.glob("*.parquet")):
    group = pq.ParquetFile(path).metadata.row_group(0)
    print(path.name, path.stat().st_size, [group.column(leaf).encodings for leaf in range(3)])
