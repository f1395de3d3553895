"""The records of the tuner on disk: what counts, what is skipped, and what is never used."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tiledsl.errors import TileError
from tiledsl.tune import records
from tiledsl.tune.records import Records

SETTING = {"kernel": "k", "code": "c", "device": "GPU", "toolchain": "ptxas 13"}
TIMED = {"outcome": "timed", "us": 3.5}


def test_records_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    first = Records(file, SETTING)
    first.add("4x4x4", {"T": 4, "U": [1, 2]}, TIMED)
    first.add("4x4x4", {"T": 8, "U": [1, 2]}, {"outcome": "hung", "reason": "not done"})
    again = Records(file, SETTING)
    assert again.find("4x4x4", {"U": [1, 2], "T": 4}) == TIMED and not again.skipped
    assert again.find("4x4x5", {"T": 4, "U": [1, 2]}) is None
    assert len(file.read_text().splitlines()) == 2 and json.loads(file.read_text().splitlines()[0])["device"] == "GPU"


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace(b"3.5", b"2.5"),
        lambda text: b"\xff\x00" + text,
        lambda text: b"[]\n",
        lambda text: b'{"crc": 0}\n',
        lambda text: text.replace(b"timed", b"timde"),
    ],
)
def test_a_damaged_record_is_skipped_and_what_follows_is_whole(tmp_path: Path, damage: Any) -> None:
    file = tmp_path / "r.jsonl"
    Records(file, SETTING).add("4x4x4", {"T": 4}, TIMED)
    file.write_bytes(damage(file.read_bytes()))
    found = Records(file, SETTING)
    assert found.skipped == {"damaged": 1} and found.find("4x4x4", {"T": 4}) is None
    found.add("4x4x4", {"T": 8}, TIMED)
    again = Records(file, SETTING)
    assert again.skipped == {"damaged": 1} and again.find("4x4x4", {"T": 8}) == TIMED


WRONG_RESULTS: list[Any] = [
    None, [], "timed", {}, {"outcome": "timed"}, {"outcome": "tamed", "us": 1.0}, {"outcome": []}, {"outcome": "hung"},
    {"outcome": "hung", "reason": 3},
    *({"outcome": "timed", "us": us} for us in (0, -1.0, float("nan"), float("inf"), "3", None, True, 10**400)),
]  # fmt: skip


@pytest.mark.parametrize("change", [
    *({"result": result} for result in WRONG_RESULTS),
    *({name: None} for name in ("kernel", "code", "device", "toolchain", "product", "consts", "version")),
    {"consts": [1]}, {"product": 4},
])  # fmt: skip
def test_a_wrong_record_with_a_right_checksum_is_skipped(tmp_path: Path, change: Any) -> None:
    file = tmp_path / "r.jsonl"
    good = {**SETTING, "product": "4x4x4", "consts": {"T": 4}, "result": TIMED}
    lines = [records._line(good), records._line({**good, **change})]
    lines.append(records._line({name: value for name, value in good.items() if name not in change}))
    file.write_text("\n".join(lines) + "\n")
    found = Records(file, SETTING)
    assert found.skipped.total() == (2 if change.keys() & good.keys() else 1)
    assert found.find("4x4x4", {"T": 4}) == TIMED and len(found._known) == 1


def test_mutated_records_are_never_used(tmp_path: Path) -> None:
    file, chance = tmp_path / "r.jsonl", random.Random(7)
    Records(file, SETTING).add("4x4x4", {"T": 4}, TIMED)
    good = file.read_bytes()
    for _ in range(300):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data) - 1)] = chance.choice(b'"{}[]:,\\019aeN \n\r\xff')
        file.write_bytes(data)
        found = Records(file, SETTING)
        assert all(result == TIMED for result in found._known.values())
        assert found._known == {} or json.loads(data) == json.loads(good)


def test_many_records_of_others_are_not_read_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of others are not even parsed as JSON, unless their spaces differ from those that the tuner writes."""
    file = tmp_path / "r.jsonl"
    for number in range(3):
        Records(file, {**SETTING, "kernel": f'other "{number % 2}"'}).add("4x4x4", {"T": 4}, TIMED)
    Records(file, SETTING).add("4x4x4", {"T": 4}, TIMED)
    file.write_text(file.read_text() + json.dumps({"kernel": "spaced"}, separators=(",", ":")) + "\n")
    read: list[bytes] = []
    record = records._record
    monkeypatch.setattr(records, "_record", lambda line: read.append(line) or record(line))
    found = Records(file, SETTING)
    assert len(read) == 2 and found.find("4x4x4", {"T": 4}) == TIMED
    assert found.skipped == {
        'of another kernel (other "0", here k)': 2, 'of another kernel (other "1", here k)': 1, "damaged": 1,
    }  # fmt: skip


def test_records_of_another_setting_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    Records(file, SETTING).add("4x4x4", {"T": 4}, TIMED)
    Records(file, {**SETTING, "device": "other GPU"}).add("4x4x4", {"T": 4}, TIMED)
    Records(file, {**SETTING, "device": "other GPU"}).add("4x4x4", {"T": 8}, TIMED)
    Records(file, {**SETTING, "toolchain": "ptxas 12"}).add("4x4x4", {"T": 4}, TIMED)
    assert Records(file, SETTING).skipped == {
        "of another device (other GPU, here GPU)": 2,
        "of another toolchain (ptxas 12, here ptxas 13)": 1,
    }


def test_records_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    with pytest.raises(TileError, match=r"cannot write .*\n  fix: give another --records"):
        Records(tmp_path / "missing" / "r.jsonl", SETTING).add("4x4x4", {"T": 4}, TIMED)
    with pytest.raises(TileError, match=r"cannot read .*: expected a file, got a folder"):
        Records(tmp_path, SETTING)
