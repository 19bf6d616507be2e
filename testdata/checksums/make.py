"""Makes the files of this folder; README.md says what they are for. Needs pyarrow."""

import itertools
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).parent
ENCODINGS = {
    "dict": {"use_dictionary": True},
    "fallback": {"use_dictionary": True, "dictionary_pagesize_limit": 24},
    "plain": {"use_dictionary": False},
    "delta": {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"},
    "bss": {"use_dictionary": False, "column_encoding": "BYTE_STREAM_SPLIT"},
}
CODECS = ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]


def row(number):
    """Runs of one id, and ids that differ; null and empty rows among them."""
    if number == 3:
        return None
    if number == 4:
        return []
    run = [7] * (number * 5 % 23)
    return run + [(number * 131 + token * 17) % 300 for token in range(1 + number * 3 % 11)]


def main():
    for (name, encoding), codec, version in itertools.product(ENCODINGS.items(), CODECS, [1, 2]):
        item = pa.int64() if codec in ("gzip", "lz4") else pa.uint32()
        table = pa.table({"input_ids": pa.array([row(n) for n in range(12)], pa.list_(item))})
        pq.write_table(
            table,
            HERE / f"{name}_{codec}_v{version}.parquet",
            compression=codec,
            data_page_version=f"{version}.0",
            data_page_size=64,
            write_batch_size=8,
            row_group_size=7,
            write_page_checksum=True,
            store_schema=False,
            # Without statistics, levels are counted: another way through the same pages.
            write_statistics=codec != "zstd",
            **encoding,
        )


if __name__ == "__main__":
    main()
