"""Makes Parquet files with columns of many kinds, and `expected.json`: what is in each row, by column.

    pip install pyarrow==26.0.1 && python make.py
"""

import datetime
import decimal
import json
import pathlib
import random

import pyarrow as pa
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).parent
dice = random.Random(17)

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("text", pa.string()),
        ("flag", pa.bool_()),
        ("small", pa.uint8()),
        ("large", pa.uint64()),
        ("ratio", pa.float32()),
        ("weight", pa.float64()),
        ("tokens", pa.list_(pa.int32())),
        ("scores", pa.list_(pa.float64())),
        ("nested", pa.list_(pa.list_(pa.int64()))),
        ("tags", pa.list_(pa.string())),
        ("point", pa.struct([("x", pa.float64()), ("deep", pa.struct([("z", pa.int32())]))])),
        ("people", pa.list_(pa.struct([("name", pa.string()), ("age", pa.int32())]))),
        ("when", pa.timestamp("us")),
        ("day", pa.date32()),
        ("price", pa.decimal128(9, 2)),
        ("blob", pa.binary()),
        ("code", pa.binary(4)),
        ("attributes", pa.map_(pa.string(), pa.int64())),
    ]
)


def maybe(value):
    return None if dice.random() < 0.2 else value


def some(make):
    return maybe([make() for _ in range(dice.choice([0, 1, 2, 5]))])


def word():
    return dice.choice(["", "a", "grün", "longer words", "日本"])


def row(number):
    return {
        "id": number,
        "text": maybe(word()),
        "flag": maybe(dice.random() < 0.5),
        "small": maybe(dice.randrange(256)),
        "large": maybe(dice.choice([0, 7, 2**63 - 1, 2**63, 2**64 - 1])),
        "ratio": maybe(dice.randrange(-100, 100) / 4),
        "weight": maybe(dice.randrange(-100, 100) / 8),
        "tokens": some(lambda: dice.randrange(50_000)),
        "scores": some(lambda: maybe(dice.randrange(100) / 2)),
        "nested": some(lambda: some(lambda: maybe(dice.randrange(-5, 5)))),
        "tags": some(lambda: maybe(word())),
        "point": maybe({"x": maybe(dice.randrange(10) / 2), "deep": maybe({"z": maybe(dice.randrange(9))})}),
        "people": some(lambda: maybe({"name": maybe(word()), "age": maybe(dice.randrange(99))})),
        "when": maybe(datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=dice.randrange(10**15))),
        "day": maybe(datetime.date(1970, 1, 1) + datetime.timedelta(days=dice.randrange(20_000))),
        "price": maybe(decimal.Decimal(dice.randrange(-99_999, 99_999)) / 100),
        "blob": maybe(bytes(dice.randrange(256) for _ in range(dice.randrange(4)))),
        "code": maybe(bytes(dice.randrange(256) for _ in range(4))),
        "attributes": maybe([(f"k{i}", maybe(i)) for i in range(dice.randrange(3))]),
    }


def plain(value):
    match value:
        case bytes():
            return {"bytes": value.hex()}
        case datetime.datetime():
            return round((value - datetime.datetime(1970, 1, 1)) / datetime.timedelta(microseconds=1))
        case datetime.date():
            return (value - datetime.date(1970, 1, 1)).days
        case decimal.Decimal():
            return {"bytes": int(value * 100).to_bytes(4, "big", signed=True).hex()}
        case list():
            return [plain(item) for item in value]
    return value


def part(value, *names):
    """What a column has of a struct, or of a list of them."""
    if value is None or not names:
        return value
    if isinstance(value, list):
        return [part(item, *names) for item in value]
    return part(value[names[0]], *names[1:])


def columns(row):
    found = {name: plain(value) for name, value in row.items() if name not in ("point", "people", "attributes")}
    found["point.x"] = part(row["point"], "x")
    found["point.deep.z"] = part(row["point"], "deep", "z")
    found["people.name"] = part(row["people"], "name")
    found["people.age"] = part(row["people"], "age")
    pairs = row["attributes"]
    found["attributes.key"] = pairs if pairs is None else [key for key, _ in pairs]
    found["attributes.value"] = pairs if pairs is None else [value for _, value in pairs]
    return found


files = {"a.parquet": range(0, 130), "b.parquet": range(130, 131), "c.parquet": range(131, 131), "d.parquet": range(131, 200)}
options = {
    "a.parquet": {"compression": "zstd", "row_group_size": 40, "data_page_size": 64},
    "b.parquet": {"compression": "none"},
    "c.parquet": {"compression": "snappy"},
    "d.parquet": {"compression": "snappy", "use_dictionary": False, "data_page_version": "2.0", "row_group_size": 25},
}
expected = []
for name, numbers in files.items():
    rows = [row(number) for number in numbers]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), HERE / name, write_page_checksum=True, **options[name])
    expected += [columns(row) for row in rows]
lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in expected)
(HERE / "expected.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
