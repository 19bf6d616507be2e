"""Make the small Parquet files of this directory, and the list of them.

    python make.py           write the files and expected.json, then check
    python make.py --check   only check what is already here

The files exist because a reader that decodes pages itself meets choices its
own test writer never makes: dictionaries given up half way, pages without a
single value, levels for nulls that cannot occur.  Here several writers make
those choices, and expected.json says what has to come out.

Everything is deterministic, so a regenerated tree differs only where a
writer's version (requirements.txt) differs.  The files named pyarrow16_* come
from make_pyarrow16.py and are only listed and checked here.
"""

import json
import sys
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import make_pyarrow16
import pages
from rowsets import ROWSETS, U32_MAX

HERE = Path(__file__).resolve().parent
EXPECTED = HERE / "expected.json"

# What a column of each item type can hold at most.
WIDE = {"u16": "wide_u16", "i32": "wide_i32", "u32": "wide", "i64": "wide", "u64": "wide"}


# ---------------------------------------------------------------- catalogue

FILES = []  # must be read
ODD = []  # may be read or refused, but never misread
BAD = []  # must be refused


def listed(file, writer, rowset, kind, note, column="input_ids", odd=None):
    """Record a file that holds a row set; `odd` says what readers dispute."""
    entry = {
        "file": file,
        "writer": writer,
        "column": column,
        "rowset": rowset,
        "type": kind,
        "row_groups": pq.read_metadata(HERE / file).num_row_groups,
        "pages": pages.summary(HERE / file, column),
        "note": note,
    }
    if odd:
        ODD.append({**entry, "why": odd})
    else:
        FILES.append(entry)


def refused(file, writer, kind, why, row=None):
    """Record a file that must be refused; `row` is the one row at fault."""
    entry = {"file": file, "writer": writer, "column": "input_ids", "type": kind, "why": why}
    if row is not None:
        entry["row"] = row
    BAD.append(entry)


# ---------------------------------------------------------------- pyarrow

PYARROW = f"pyarrow {pa.__version__}"

# The options that make small files interesting: several row groups, several
# pages in each.  pyarrow looks at the page size only after each batch, hence
# the small batch beside the small page.
SMALL = {"row_group_size": 13, "data_page_size": 128, "write_batch_size": 8}

# pyarrow's "lz4" is LZ4_RAW in the file, not the deprecated framed LZ4.
CODECS = ("none", "snappy", "gzip", "brotli", "zstd", "lz4")

ITEMS = {
    "u16": pa.uint16(),
    "i32": pa.int32(),
    "u32": pa.uint32(),
    "i64": pa.int64(),
    "u64": pa.uint64(),
}

# Encodings are given per leaf, by its path in the file.
LEAF = "input_ids.list.element"


def encoded(encoding):
    return {"use_dictionary": False, "column_encoding": {LEAF: encoding}}


def list_of(item, required=False):
    return pa.list_(pa.field("item", item, nullable=not required))


def type_name(kind):
    """The type as expected.json spells it; nullability is left to the note."""
    if pa.types.is_fixed_size_list(kind):
        return f"fixed_size_list<{kind.value_type}>[{kind.list_size}]"
    return str(kind).replace("item: ", "").replace(" not null", "")


def write_arrow(file, field, rows, **options):
    table = pa.Table.from_arrays([pa.array(rows, field.type)], schema=pa.schema([field]))
    pq.write_table(table, HERE / file, **{**SMALL, **options})


def arrow(name, rowset, note, kind=None, column="input_ids", nullable=True, **options):
    """Write and list one pyarrow file with a single list column."""
    kind = kind or list_of(pa.int32())
    file = f"pyarrow_{name}.parquet"
    write_arrow(file, pa.field(column, kind, nullable), ROWSETS[rowset], **options)
    listed(file, PYARROW, rowset, type_name(kind), note, column)


def make_pyarrow():
    # The full cross of what a page can look like.  Neighbours alternate
    # between the two row sets, so each value of an axis meets both.
    for v, version in enumerate(("1.0", "2.0")):
        for c, codec in enumerate(CODECS):
            for d, dictionary in enumerate((True, False)):
                name = f"v{v + 1}_{codec}_{'dict' if dictionary else 'plain'}"
                # A version 2 page that would not shrink is stored as it is,
                # and few indices never shrink: those pages need to be larger.
                larger = {"data_page_size": 512, "row_group_size": 20}
                arrow(
                    name,
                    ("gaps", "plain")[(v + c + d) % 2],
                    f"page v{v + 1}, {codec}, dictionary {'on' if dictionary else 'off'}",
                    data_page_version=version,
                    compression=codec,
                    use_dictionary=dictionary,
                    **(larger if v == 1 and dictionary else {}),
                )
                made = FILES[-1]["pages"]
                if codec != "none" and made["stored"] == made["data"]:
                    raise SystemExit(f"{name}: no page is compressed, so it tests no codec")

    # The full cross of item types, up to the limit of each.
    for short, item in ITEMS.items():
        for dictionary in (True, False):
            arrow(
                f"wide_{short}_{'dict' if dictionary else 'plain'}",
                WIDE[short],
                "ids up to the limit",
                list_of(item),
                use_dictionary=dictionary,
                compression="none",
            )

    # Nullability decides how many definition levels there are.
    for list_required in (False, True):
        for item_required in (False, True):
            letters = "".join("r" if r else "o" for r in (list_required, item_required))
            for version in ("1.0", "2.0"):
                arrow(
                    f"levels_{letters}_v{version[0]}",
                    "empties" if list_required else "gaps",
                    f"list {'required' if list_required else 'optional'}, "
                    f"items {'required' if item_required else 'optional'}",
                    list_of(pa.int32(), item_required),
                    nullable=not list_required,
                    data_page_version=version,
                )

    # The other kinds of list.
    arrow("large_list", "gaps", "large_list", pa.large_list(pa.int32()))
    fixed = pa.list_(pa.int32(), 16)
    arrow("fixed_list", "fixed", "fixed_size_list", fixed)
    arrow("fixed_list_gaps", "fixed_gaps", "fixed_size_list, null rows", fixed)
    arrow(
        "fixed_list_required",
        "fixed",
        "fixed_size_list, list and items required",
        pa.list_(pa.field("item", pa.uint16(), nullable=False), 16),
        nullable=False,
        data_page_version="2.0",
    )
    arrow(
        "fixed_list_noschema",
        "fixed",
        "fixed_size_list without the embedded Arrow schema: in the file, just a list",
        fixed,
        store_schema=False,
    )

    # The other encodings.
    for version in ("1.0", "2.0"):
        arrow(
            f"repeats_dict_v{version[0]}",
            "repeats",
            "RLE and bit-packed runs of dictionary indices",
            data_page_version=version,
            compression="none",
        )
    for encoding, short in (("DELTA_BINARY_PACKED", "delta"), ("BYTE_STREAM_SPLIT", "bss")):
        for item, rowset, version in (
            ("i32", "gaps", "1.0"),
            ("u32", "wide", "2.0"),
            ("i64", "wide", "1.0"),
        ):
            arrow(
                f"{short}_{item}",
                rowset,
                f"{encoding}, page v{version[0]}",
                list_of(ITEMS[item]),
                data_page_version=version,
                **encoded(encoding),
            )
    arrow(
        "delta_repeats",
        "repeats",
        "DELTA_BINARY_PACKED, several blocks to a page, miniblocks of bit width 0",
        # pyarrow's blocks are of 128 values, and a row group has several.
        data_page_size=1 << 20,
        **encoded("DELTA_BINARY_PACKED"),
    )

    # Dictionaries that outgrow their limit: the chunk begins with indices and
    # goes on with plain values.
    for version in ("1.0", "2.0"):
        arrow(
            f"fallback_v{version[0]}",
            "plain",
            "dictionary given up mid-chunk",
            data_page_version=version,
            dictionary_pagesize_limit=256,
            row_group_size=20,
        )

    # Rows far larger than a page.  This pyarrow gives each a page of its own;
    # the rows that do cross pages are in the pyarrow16_* files.
    for version, dictionary in (("1.0", True), ("2.0", False)):
        arrow(
            f"long_v{version[0]}",
            "long",
            f"rows far larger than the page size, dictionary {'on' if dictionary else 'off'}",
            data_page_version=version,
            use_dictionary=dictionary,
            row_group_size=3,
            compression="zstd",
        )

    # What the footer and the page headers may or may not say.
    for version in ("1.0", "2.0"):
        for name, note, option in (
            ("nostats", "no statistics", {"write_statistics": False}),
            ("index", "page index", {"write_page_index": True}),
            ("checksum", "page checksums", {"write_page_checksum": True}),
        ):
            arrow(f"{name}_v{version[0]}", "gaps", note, data_page_version=version, **option)
    arrow(
        "bloom",
        "plain",
        "bloom filters between the row groups and the footer",
        # Numbers that make for small filters.
        bloom_filter_options={LEAF: {"ndv": 64, "fpp": 0.1}},
        row_group_size=20,
    )
    arrow("noschema", "gaps", "no embedded Arrow schema", store_schema=False)
    arrow("item_name", "gaps", "leaf named item, not element", use_compliant_nested_type=False)
    arrow(
        "format1_u32",
        "wide",
        "format version 1.0, in which pyarrow stores uint32 as INT64 without a logical type",
        list_of(pa.uint32()),
        version="1.0",
    )

    # Page borders by other rules than size.
    arrow(
        "rows_per_page",
        "gaps",
        "at most three rows to a page",
        data_page_version="2.0",
        max_rows_per_page=3,
        data_page_size=1 << 20,
    )
    arrow(
        "cdc",
        "plain",
        "content-defined chunking: page borders follow the data",
        use_content_defined_chunking={
            "min_chunk_size": 128,
            "max_chunk_size": 512,
            "norm_level": 0,
        },
        data_page_size=1 << 20,
        row_group_size=40,
    )

    # Hardly anything.
    arrow("one", "one", "a single row")
    for version in ("1.0", "2.0"):
        arrow(
            f"hollow_v{version[0]}",
            "hollow",
            f"nulls and empties only, page v{version[0]}",
            data_page_version=version,
        )
    arrow("none", "none", "no rows, written as a table")
    schema = pa.schema([pa.field("input_ids", list_of(pa.int32()))])
    file = "pyarrow_none_nogroup.parquet"
    pq.ParquetWriter(HERE / file, schema).close()
    listed(file, PYARROW, "none", "list<int32>", "no rows, no table ever written")

    # Row groups of uneven size, one of them without rows.
    file = "pyarrow_uneven.parquet"
    whole = pa.table({"input_ids": pa.array(ROWSETS["gaps"], list_of(pa.int32()))})
    options = {k: v for k, v in SMALL.items() if k != "row_group_size"}
    with pq.ParquetWriter(HERE / file, whole.schema, **options) as out:
        for start, stop in ((0, 1), (1, 2), (2, 20), (20, 20), (20, 39), (39, 40)):
            out.write_table(whole.slice(start, stop - start))
    listed(file, PYARROW, "gaps", "list<int32>", "uneven row groups, one of no rows")

    # Another name; and company on both sides, lists of integers among it.
    arrow("token_ids", "plain", "column named token_ids", column="token_ids")
    rows = ROWSETS["gaps"]
    n = range(len(rows))
    file = "pyarrow_around.parquet"
    around = {
        "text": [f"document {i} " * (i % 5) for i in n],
        "score": [None if i % 7 == 3 else i / 8 for i in n],
        "mask": pa.array([row and [1] * len(row) for row in rows], list_of(pa.int32())),
        "input_ids": pa.array(rows, list_of(pa.uint32())),
        "meta": [{"source": "web", "ids": [i, -i]} for i in n],
        "url": [None if i % 3 == 0 else f"https://example.org/{i}" for i in n],
    }
    pq.write_table(pa.table(around), HERE / file, row_group_size=13)
    listed(file, PYARROW, "gaps", "list<uint32>", "other columns before and after")


def list_pyarrow16():
    for name, rowset, item, _, note, _ in make_pyarrow16.FILES:
        listed(
            make_pyarrow16.file_name(name),
            make_pyarrow16.WRITER,
            rowset,
            f"list<{item}>",
            f"rows across page borders; {note}",
        )


# ---------------------------------------------------------------- polars

POLARS = f"polars {pl.__version__}"


def polars(name, rowset, note, item=pl.Int32, width=None, **options):
    kind = pl.Array(item, width) if width else pl.List(item)
    file = f"polars_{name}.parquet"
    frame = pl.DataFrame({"input_ids": pl.Series(ROWSETS[rowset], dtype=kind)})
    frame.write_parquet(HERE / file, **{"row_group_size": 12, "data_page_size": 256, **options})
    spelled = str(item).lower()
    spelled = f"fixed_size_list<{spelled}>[{width}]" if width else f"list<{spelled}>"
    listed(file, POLARS, rowset, spelled, note)


def make_polars():
    for codec in ("uncompressed", "snappy", "zstd", "lz4"):
        polars(codec, "gaps", codec, compression=codec)
    for short, item in (
        ("u16", pl.UInt16),
        ("i32", pl.Int32),
        ("u32", pl.UInt32),
        ("i64", pl.Int64),
        ("u64", pl.UInt64),
    ):
        polars(f"wide_{short}", WIDE[short], "ids up to the limit", item)
    polars("nostats", "gaps", "no statistics", statistics=False)
    polars("fullstats", "gaps", "statistics='full'", statistics="full")
    polars("defaults", "plain", "all defaults", row_group_size=None, data_page_size=None)
    polars("repeats", "repeats", "long runs, which polars leaves plain in lists")
    polars("long", "long", "rows far larger than the page size", pl.UInt16, row_group_size=3)
    polars("array", "fixed", "Array(Int32, 16)", width=16)
    polars("array_gaps", "fixed_gaps", "Array(Int32, 16), null rows", width=16)
    polars("hollow", "hollow", "nulls and empties only")
    polars("none", "none", "no rows")


# ---------------------------------------------------------------- DuckDB

DUCKDB = f"duckdb {duckdb.__version__}"

DUCK_ITEMS = {
    "USMALLINT": ("u16", pa.uint16()),
    "INTEGER": ("i32", pa.int32()),
    "UINTEGER": ("u32", pa.uint32()),
    "BIGINT": ("i64", pa.int64()),
    "UBIGINT": ("u64", pa.uint64()),
}


def copy_duckdb(file, rows, item, sql_type, **options):
    path = str(HERE / file).replace("'", "''")
    settings = ", ".join(f"{k} {v}" for k, v in {"FORMAT": "parquet", **options}.items())
    with duckdb.connect() as db:
        # One thread: several would race for the row groups.
        db.execute("SET threads = 1")
        db.register("source", pa.table({"ids": pa.array(rows, pa.list_(item))}))
        db.execute(f"CREATE TABLE t AS SELECT ids::{sql_type} AS input_ids FROM source")
        db.execute(f"COPY t TO '{path}' ({settings})")


def duck(name, rowset, note, item="INTEGER", width="", odd=None, **options):
    kind = DUCK_ITEMS[item][1]
    file = f"duckdb_{name}.parquet"
    copy_duckdb(file, ROWSETS[rowset], kind, f"{item}[{width}]", **options)
    spelled = f"fixed_size_list<{kind}>[{width}]" if width else f"list<{kind}>"
    listed(file, DUCKDB, rowset, spelled, note, odd=odd)


def make_duckdb():
    # Row groups by bytes, as a group by rows has at least 2,048 of them.
    groups = {"ROW_GROUP_SIZE_BYTES": 1024}
    for version in ("V1", "V2"):
        v = version.lower()
        for codec in ("uncompressed", "snappy", "zstd"):
            duck(
                f"{v}_{codec}",
                "gaps",
                f"parquet_version {version}, {codec}",
                PARQUET_VERSION=version,
                COMPRESSION=codec,
                **groups,
            )
        for item, (short, _) in DUCK_ITEMS.items():
            odd = None
            if (version, short) == ("V2", "u32"):
                odd = (
                    "DELTA_BINARY_PACKED deltas of 33 bits for an INT32 column: the format "
                    "wants them wrapped to 32; DuckDB and polars read them, pyarrow refuses"
                )
            duck(
                f"{v}_wide_{short}",
                WIDE[short],
                f"parquet_version {version}, ids up to the limit",
                item,
                odd=odd,
                PARQUET_VERSION=version,
            )
        for rowset, item, option in (
            ("repeats", "INTEGER", {}),
            ("hollow", "INTEGER", {}),
            ("many", "UINTEGER", {"ROW_GROUP_SIZE": 2048}),
        ):
            duck(
                f"{v}_{rowset}",
                rowset,
                f"parquet_version {version}, {rowset}",
                item,
                PARQUET_VERSION=version,
                **option,
            )
    duck("lz4", "gaps", "lz4", COMPRESSION="lz4", **groups)
    duck("v2_long", "long", "DELTA_BINARY_PACKED, long rows", "USMALLINT", PARQUET_VERSION="V2")
    duck("empties", "empties", "no null rows, for which DuckDB makes the list required", **groups)
    duck("array", "fixed", "INTEGER[16]", width="16")
    duck(
        "array_gaps",
        "fixed_gaps",
        "INTEGER[16], null rows",
        width="16",
        odd="a null row has 16 level entries (duckdb issue 24731), where the format knows "
        "one; DuckDB and polars read it, pyarrow refuses",
    )
    duck("none", "none", "no rows")


# ---------------------------------------------------------------- refused


def make_bad():
    def bad(name, kind, rows, why, row=None, **options):
        file = f"bad_{name}.parquet"
        write_arrow(file, pa.field("input_ids", kind), rows, **options)
        refused(file, PYARROW, type_name(kind), why, row)

    # Values.  The fault sits in the second row group and not in the first
    # place of its row, so that a reader has to look at everything.
    fault = 17

    def with_fault(value):
        rows = ROWSETS["gaps"][:20]
        rows[fault] = [5, value, 6]
        return rows

    why = "null item inside a list"
    for version in ("1.0", "2.0"):
        for dictionary in (True, False):
            bad(
                f"null_item_v{version[0]}_{'dict' if dictionary else 'plain'}",
                list_of(pa.int32()),
                with_fault(None),
                why,
                fault,
                data_page_version=version,
                use_dictionary=dictionary,
            )
    # A null item is one null more in the count, as null and empty rows are.
    bad("null_item_only", list_of(pa.int32()), [[None]], why, 0)
    bad(
        "null_item_nostats",
        list_of(pa.int32()),
        with_fault(None),
        why,
        fault,
        write_statistics=False,
    )
    rows = with_fault(None)
    file = "bad_null_item_polars.parquet"
    frame = pl.DataFrame({"input_ids": pl.Series(rows, dtype=pl.List(pl.Int32))})
    frame.write_parquet(HERE / file, row_group_size=12)
    refused(file, POLARS, "list<int32>", why, fault)
    for version in ("V1", "V2"):
        file = f"bad_null_item_duckdb_{version.lower()}.parquet"
        copy_duckdb(file, rows, pa.int32(), "INTEGER[]", PARQUET_VERSION=version)
        refused(file, DUCKDB, "list<int32>", why, fault)

    # The ones named low32 would pass for ids if cut down to 32 bits.
    for name, item, value, why in (
        ("negative_i32", "i32", -1, "negative id"),
        ("negative_i64", "i64", -1, "negative id"),
        ("negative_i64_low32", "i64", 5 - 2**32, "negative id"),
        ("over_i64", "i64", U32_MAX + 1, "id over u32::MAX"),
        ("over_u64_low32", "u64", 2**40 + 5, "id over u32::MAX"),
        ("over_u64_max", "u64", 2**64 - 1, "id over u32::MAX"),
    ):
        kind = list_of(ITEMS[item])
        for dictionary in (True, False):
            suffix = "dict" if dictionary else "plain"
            bad(
                f"{name}_{suffix}",
                kind,
                with_fault(value),
                why,
                fault,
                use_dictionary=dictionary,
            )
        if "i32" in name or "low32" in name:
            # Without statistics only the values themselves can tell, and
            # these encodings have decoders of their own.
            for encoding, short in (("DELTA_BINARY_PACKED", "delta"), ("BYTE_STREAM_SPLIT", "bss")):
                bad(
                    f"{name}_{short}_nostats",
                    kind,
                    with_fault(value),
                    why,
                    fault,
                    write_statistics=False,
                    **encoded(encoding),
                )

    # Types.  The last few are integers in the file, but not by what they mean.
    for name, kind, rows in (
        ("list_string", pa.list_(pa.string()), [["a", "b"], ["c"]]),
        ("list_float", pa.list_(pa.float32()), [[1.0, 2.0], [3.0]]),
        ("list_double", pa.list_(pa.float64()), [[1.0, 2.0], [3.0]]),
        ("list_list", pa.list_(pa.list_(pa.int32())), [[[1, 2], [3]], [[4]]]),
        ("int32", pa.int32(), [1, 2, 3]),
        ("list_int8", pa.list_(pa.int8()), [[1, 2], [3]]),
        ("list_int16", pa.list_(pa.int16()), [[1, 2], [3]]),
        ("list_bool", pa.list_(pa.bool_()), [[True, False], [True]]),
        ("struct", pa.struct({"ids": pa.list_(pa.int32())}), [{"ids": [1, 2]}]),
        ("list_struct", pa.list_(pa.struct({"id": pa.int32()})), [[{"id": 1}]]),
        ("map", pa.map_(pa.int32(), pa.int32()), [[(1, 2)], [(3, 4)]]),
        ("list_date", pa.list_(pa.date32()), [[1, 2], [3]]),
        ("list_timestamp", pa.list_(pa.timestamp("us")), [[1, 2], [3]]),
        ("list_decimal", pa.list_(pa.decimal128(9, 0)), [[1, 2], [3]]),
    ):
        why = f"{type_name(kind)} is no list of ids"
        bad(name, kind, rows, why, store_decimal_as_integer=True)
    file = "bad_duckdb_hugeint.parquet"
    copy_duckdb(file, [[1, 2], [3]], pa.int32(), "HUGEINT[]")
    refused(file, DUCKDB, "list<double>", "DuckDB stores HUGEINT[] as DOUBLE: no list of ids")

    # These hold the right type under other names, against a reader that takes
    # the first list, ignores case or looks at the leaf's name only.
    file = "bad_missing.parquet"
    rows = pa.array([[1, 2], [3]], list_of(pa.int32()))
    nested = pa.StructArray.from_arrays([rows], ["input_ids"])
    pq.write_table(pa.table({"ids": rows, "INPUT_IDS": rows, "nested": nested}), HERE / file)
    refused(file, PYARROW, "missing", "there is no column input_ids")


# ---------------------------------------------------------------- list, check


def write_expected():
    """One line for each row set and file: compact, yet a diff stays readable."""

    def compact(value):
        return json.dumps(value, separators=(",", ":"))

    sets = ",\n".join(f"{compact(k)}:{compact(v)}" for k, v in ROWSETS.items())
    lists = ",\n".join(
        f'"{name}":[\n' + ",\n".join(map(compact, entries)) + "\n]"
        for name, entries in (("files", FILES), ("odd", ODD), ("bad", BAD))
    )
    EXPECTED.write_text(f'{{"rowsets":{{\n{sets}\n}},\n{lists}}}\n')


def counts(entry, rows):
    """Compare the footer's counts with the content, row group by row group.

    A reader can know a chunk's tokens without decoding it if
    num_values == tokens + null rows + empty rows and
    null_count == null rows + empty rows.
    Returns what does not hold, and how many chunks had a null count.
    """
    metadata = pq.read_metadata(HERE / entry["file"])
    problems, start, counted = [], 0, 0
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        part, start = rows[start : start + group.num_rows], start + group.num_rows
        without = sum(not row for row in part)
        held = sum(len(row or ()) for row in part)
        chunk = next(
            c
            for c in map(group.column, range(group.num_columns))
            if c.path_in_schema.split(".")[0] == entry["column"]
        )
        if chunk.num_values != held + without:
            problems.append(f"group {g}: num_values {chunk.num_values}, not {held + without}")
        if chunk.is_stats_set and chunk.statistics.has_null_count:
            counted += 1
            nulls = chunk.statistics.null_count
            if nulls != without:
                problems.append(f"group {g}: null_count {nulls}, not {without}")
        elif chunk.is_stats_set:
            problems.append(f"group {g}: statistics without null_count")
    return problems, counted


def read(entry):
    table = pq.read_table(HERE / entry["file"], columns=[entry["column"]], use_threads=False)
    return table.column(0).to_pylist()


def check():
    expected = json.loads(EXPECTED.read_text())
    sets, failures, writers = expected["rowsets"], [], {}

    names = [e["file"] for key in ("files", "odd", "bad") for e in expected[key]]
    there = sorted(p.name for p in HERE.glob("*.parquet"))
    if sorted(names) != there:
        failures.append(f"listed and present differ: {sorted(set(names) ^ set(there))}")

    for entry in expected["files"] + expected["odd"]:
        path = HERE / entry["file"]
        if pq.read_metadata(path).num_row_groups != entry["row_groups"]:
            failures.append(f"{path.name}: another number of row groups")
        if pages.summary(path, entry["column"]) != entry["pages"]:
            failures.append(f"{path.name}: other pages")

    for entry in expected["files"]:
        rows = sets[entry["rowset"]]
        if read(entry) != rows:
            failures.append(f"{entry['file']}: other content")
        problems, counted = counts(entry, rows)
        failures += [f"{entry['file']}: {p}" for p in problems]
        tally = writers.setdefault(entry["writer"], [0, 0, 0])
        for i, more in enumerate((1, entry["row_groups"], counted)):
            tally[i] += more

    # Odd means that the writer itself reads it and pyarrow does not.  Once
    # that changes, the file belongs among the others.
    for entry in expected["odd"]:
        found = duckdb.read_parquet(str(HERE / entry["file"])).fetchall()
        if [row and list(row) for (row,) in found] != sets[entry["rowset"]]:
            failures.append(f"{entry['file']}: other content")
        try:
            read(entry)
            failures.append(f"{entry['file']}: no longer odd")
        except (pa.ArrowException, OSError):
            pass
        for problem in counts(entry, sets[entry["rowset"]])[0]:
            print(f"odd: {entry['file']}: {problem}")

    for entry in expected["bad"]:
        if "row" in entry:
            wrong = [
                i
                for i, row in enumerate(read(entry))
                if any(t is None or not 0 <= t <= U32_MAX for t in row or ())
            ]
            if wrong != [entry["row"]]:
                failures.append(f"{entry['file']}: rows {wrong} are at fault")

    for writer, (files, chunks, counted) in writers.items():
        print(f"{writer}: {files} files, {chunks} column chunks, {counted} with null_count")
    size = sum(p.stat().st_size for p in HERE.iterdir() if p.is_file())
    print(", ".join(f"{len(expected[k])} {k}" for k in ("files", "odd", "bad")), f"{size:,} bytes")
    for failure in failures:
        print("FAILED", failure)
    return not failures


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    if not sys.argv[1:]:
        # A file that is no longer made must not stay behind.
        for stale in HERE.glob("*.parquet"):
            if not stale.name.startswith("pyarrow16_"):
                stale.unlink()
        make_pyarrow()
        list_pyarrow16()
        make_polars()
        make_duckdb()
        make_bad()
        write_expected()
    sys.exit(not check())


if __name__ == "__main__":
    main()
