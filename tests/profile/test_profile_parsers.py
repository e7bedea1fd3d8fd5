"""Texts of the kernel, as captured on Linux 6.1 (Raspberry Pi OS) and 6.12 (x86-64)."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.catalog.processor import parse_cpu_name
from trimtab.domain.process_memory import parse_holdings
from trimtab.errors import UsageError
from trimtab.profile.here import parse_memory
from trimtab.profile.intervals import interval, student, wilson
from trimtab.profile.page_cache import drop
from trimtab.profile.quiet import busy_ratio, parse_cpu
from trimtab.profile.session import Times
from trimtab.profile.tasks import normalised, parse_questions, read_tasks
from trimtab.profile.threads import ThreadTime, parse_schedstat, waited_s

STATUS = """Name:\tpython3
VmRSS:\t  245760 kB
RssAnon:\t  228020 kB
RssFile:\t   17000 kB
RssShmem:\t     740 kB
"""


def test_schedstat_is_nanoseconds_on_a_core_and_without_one() -> None:
    found = parse_schedstat("855758735 1284890883 265\n")

    assert found == ThreadTime(pytest.approx(0.855758735), pytest.approx(1.284890883))


def test_the_slowest_threads_wait_counts_and_new_threads_count_from_nothing() -> None:
    before = {1: ThreadTime(1.0, 0.5), 2: ThreadTime(1.0, 0.1)}
    after = {1: ThreadTime(2.0, 0.7), 2: ThreadTime(2.0, 0.2), 3: ThreadTime(0.5, 0.3)}

    assert waited_s(before, after) == pytest.approx(0.3)
    assert waited_s(before, {}) == 0.0


def test_a_process_is_split_by_kind_of_memory() -> None:
    found = parse_holdings(STATUS)

    assert found.anonymous_bytes == 228020 * 1024
    assert found.shmem_bytes == 740 * 1024


def test_a_status_without_the_split_is_refused() -> None:
    with pytest.raises(ValueError, match="RssShmem"):
        parse_holdings("RssAnon: 1 kB\nRssFile: 1 kB\n")


def test_the_share_of_busy_cores_leaves_out_idle_and_waiting_for_disks() -> None:
    before = parse_cpu("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2\n")
    after = parse_cpu("cpu  150 0 100 730 120 0 0 0 0 0\n")

    assert busy_ratio(before, after) == pytest.approx(0.5)


def test_x86_has_a_name_and_arm_a_part_number() -> None:
    x86 = "processor\t: 0\nmodel name\t: Intel(R) N100\n"
    arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0b\n"

    assert parse_cpu_name(x86) == "Intel(R) N100"
    assert parse_cpu_name(arm) == "ARM 0x41 0xd0b"
    assert parse_cpu_name("") == "unknown"
    assert parse_memory("MemTotal:        8245044 kB\n") == 8245044 * 1024


def test_dropped_files_leave_the_page_cache(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"x" * 300_000)

    assert 0 <= drop(tmp_path) <= 1  # a tmpfs keeps all of it, a disk nothing


def test_an_interval_narrows_with_more_blocks_and_holds_the_mean() -> None:
    few = interval([10.0, 14.0, 12.0], [10, 10, 10])
    many = interval([10.0, 14.0, 12.0] * 20, [10] * 60)

    assert few.low < 1.2 < few.high
    assert many.high - many.low < (few.high - few.low) / 5
    assert interval([3.0], [10]) == interval([3.0], [10])
    assert interval([3.0], [10]).low == 0.3
    assert student(1) > student(9) > student(40) > student(1000) == 1.96


def test_shares_of_right_answers_have_wilsons_interval() -> None:
    found = wilson(8, 10)

    assert (found.low, found.high) == (
        pytest.approx(0.490, abs=1e-3),
        pytest.approx(0.943, abs=1e-3),
    )
    assert wilson(0, 0).high == 1.0


def test_prompts_are_json_lines_with_one_or_several_good_answers() -> None:
    found = parse_questions(
        '{"task": "code", "prompt": "2+2?", "expected": ["4", "four"]}\n\n'
        '{"prompt": "Sky?", "expected": "blue"}\n',
        "p.jsonl",
    )

    assert [(one.task, one.expected) for one in found] == [
        ("code", ("4", "four")),
        ("text", ("blue",)),
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", "p.jsonl:1: this is no JSON"),
        ("[1]", "p.jsonl:1: this is no JSON object"),
        ('{"prompt": "x"}', "p.jsonl:1: expected: must be a text"),
        ('{"prompt": " ", "expected": "y"}', "p.jsonl:1: prompt: must be a text"),
        ('{"prompt": "x", "expected": []}', "p.jsonl:1: expected: must be a text"),
        ('{"prompt": "x", "expected": "y", "taks": "z"}', "p.jsonl:1: taks: unknown field"),
        ('{"prompt": "x", "expected": "y", "task": 3}', "p.jsonl:1: task: must be a name"),
        ("", "has no prompts"),
    ],
)
def test_a_bad_line_of_prompts_is_named(line: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_questions(line, "p.jsonl")

    assert words in caught.value.message


def test_a_text_that_isnt_text_is_refused(tmp_path: Path) -> None:
    binary, empty = tmp_path / "b", tmp_path / "e"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    empty.write_text(" \n")

    with pytest.raises(UsageError, match="not UTF-8 at byte 0"):
        read_tasks(binary, None)
    with pytest.raises(UsageError, match="is empty"):
        read_tasks(empty, None)
    with pytest.raises(UsageError, match="No such file"):
        read_tasks(tmp_path / "none", None)


def test_a_samples_time_leaves_out_what_others_had_and_never_all_of_it() -> None:
    calm = Times(tokens=[0.5, 1.5, 2.5], waited_s=(0.2, 1.0))
    drowned = Times(tokens=[0.5, 1.5, 2.5], waited_s=(9.0, 9.0))

    assert calm.first_s == pytest.approx(0.3)
    assert calm.token_s == pytest.approx(0.5)
    assert calm.token_wait_ratio == pytest.approx(0.5)
    assert drowned.token_s == pytest.approx(0.05)
    assert drowned.first_wait_ratio == 1.0


@pytest.mark.parametrize(
    ("answer", "same"),
    [
        (" Paris. \n", "Paris."),
        ("```python\ndef f(x):\n    return  2 * x\n```", "def f(x):\n    return 2 * x"),
        ("a\n\nb", "a\nb"),
    ],
)
def test_an_answer_is_compared_without_fences_and_loose_white_space(answer: str, same: str) -> None:
    assert normalised(answer) == normalised(same)


def test_indentation_and_case_make_another_answer() -> None:
    assert normalised("if x:\n    y()") != normalised("if x:\ny()")
    assert normalised("Paris") != normalised("paris")
