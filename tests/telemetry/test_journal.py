"""The decision journal: what is kept, what a power cut does, and that it never outgrows its cap."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trimtab.domain.decisions import Decision, Direction, Outcome, Trigger
from trimtab.domain.knobs import OperatingPoint
from trimtab.errors import StateError
from trimtab.telemetry.journal import KEPT, Journal

INT8, INT4 = OperatingPoint("int8", 4096), OperatingPoint("int4", 4096)


def a_decision(number: int, text: str = "") -> Decision:
    return Decision(
        id=number,
        at_s=float(number),
        direction=Direction.DOWN,
        trigger=Trigger("memory.available", 5e8, 6e8, text=text),
        source=INT8,
        target=INT4,
        predicted=None,
        runner_up=None,
        excluded=(),
        policy="balanced",
        revision="abc",
    )


def test_a_decision_and_its_outcome_are_one_record(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(a_decision(1), 100.0)
    finished = journal.finish(1, Outcome("done", 1.5, 1, 2), 101.5)
    journal.close()

    again = Journal(tmp_path).get(1)
    assert again == finished
    assert again is not None
    assert again["wall_s"] == 100.0
    assert again["outcome"]["took_s"] == 1.5
    assert len((tmp_path / "decisions.jsonl").read_text().splitlines()) == 2


def test_an_outcome_that_an_older_version_wrote_is_read(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(a_decision(1), 100.0)
    journal.finish(1, Outcome("done", 1.5, 1, 2), 101.5)
    journal.close()
    file = tmp_path / "decisions.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for name in ("worker_bytes", "celsius_before", "celsius_after", "decode_tps", "settled_s"):
        lines[1]["outcome"].pop(name, None)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    again = Journal(tmp_path)
    record = again.get(1)

    assert record is not None
    assert record["outcome"]["available_after_bytes"] == 2
    assert record["outcome"]["worker_bytes"] is None
    assert not again.unreadable_lines


def test_numbers_go_on_after_a_restart(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in (1, 2, 3):
        journal.append(a_decision(number), 0.0)
    journal.close()

    assert Journal(tmp_path).next_id == 4


def test_a_torn_last_line_costs_that_line_only(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in (1, 2):
        journal.append(a_decision(number), 0.0)
    journal.close()
    file = tmp_path / "decisions.jsonl"
    file.write_bytes(file.read_bytes()[:-40])

    again = Journal(tmp_path)
    again.append(a_decision(2), 0.0)
    again.close()

    assert again.unreadable_lines == 1
    assert [record["id"] for record in Journal(tmp_path).recent(10)] == [1, 2]


@pytest.mark.parametrize("garbage", [b"\xff\xfe\n", b"{}\n", b"[]\nnull\n", b"\0" * 100])
def test_garbage_in_the_file_is_passed_over(tmp_path: Path, garbage: bytes) -> None:
    (tmp_path / "decisions.jsonl").write_bytes(garbage)
    journal = Journal(tmp_path)
    journal.append(a_decision(1), 0.0)
    journal.close()

    assert [record["id"] for record in Journal(tmp_path).recent(5)] == [1]


def test_both_files_together_stay_under_the_cap(tmp_path: Path) -> None:
    cap_bytes = 16 * 1024
    journal = Journal(tmp_path, cap_bytes)
    for number in range(1, 400):
        journal.append(a_decision(number, "x" * 200), 0.0)
    journal.close()

    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert cap_bytes / 3 < sum(sizes) <= cap_bytes
    assert Journal(tmp_path, cap_bytes).next_id == 400


def test_memory_holds_a_bounded_number_and_the_files_the_older_ones(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(1, KEPT + 11):
        journal.append(a_decision(number), 0.0)
        journal.finish(number, Outcome("done", 1.0), 0.0)

    old = journal.get(1)
    assert len(journal.recent(10_000)) == KEPT
    assert old is not None
    assert old["outcome"]["kind"] == "done"
    assert journal.get(KEPT + 11) is None


def test_a_disk_that_fills_is_a_fault_to_show_and_no_reason_to_stop(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    (tmp_path / "decisions.jsonl").symlink_to("/dev/full")
    journal.append(a_decision(1), 0.0)

    assert "No space left" in journal.fault
    assert [record["id"] for record in journal.recent(5)] == [1]
    journal.close()


def test_a_state_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")

    with pytest.raises(StateError, match="state directory can't be made") as caught:
        Journal(tmp_path / "state")

    assert "`state`" in caught.value.hint
