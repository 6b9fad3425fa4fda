"""Units: what people write as sizes and durations, and what Watchbill writes back."""

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from watchbill import limits
from watchbill.errors import UnitError
from watchbill.units import format_bytes, format_millis, parse_bytes, parse_millis, spell_bytes, spell_millis


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4.6GB", 4_600_000_000), ("2GiB", 2**31), ("512 MiB", 512 * 2**20), ("531mb", 531_000_000), ("0", 0),
        ("15GB", 15 * 10**9), (" 1kB ", 1000), ("1KiB", 1024), ("7", 7), (4096, 4096), ("1.5TiB", 3 * 2**39),
    ],
)  # fmt: skip
def test_gb_is_ten_to_the_ninth_and_gib_two_to_the_thirtieth(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "", "GB", "4,6GB", "-1GB", "4.6 gigs", "1e9", "0x10", "nan", "inf", "4.6GB free", -1, True, "٤GB",
        "1" * 400, "9" * 20 + "TB", 2**61, "1_000",
    ],
)  # fmt: skip
def test_what_is_no_size_is_refused_with_an_example_of_one(text: str | int) -> None:
    with pytest.raises(UnitError, match="write") as caught:
        parse_bytes(text)
    assert str(caught.value).isascii()
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("15m", 900_000), ("1h30m", 5_400_000), ("500ms", 500), ("0.5s", 500), ("120s", 120_000),
        (90, 90_000), (0.25, 250), ("7d", 604_800_000), ("0s", 0), (" 5m ", 300_000),
    ],
)  # fmt: skip
def test_durations_are_read_with_their_units_and_a_bare_number_is_seconds(
    text: str | float, span: int
) -> None:
    assert parse_millis(text) == span


@pytest.mark.parametrize(
    "text",
    [
        "", "m", "5", "5 m", "5min", "-5m", "1h 30m", "soon", True, -1, float("nan"), float("inf"), 1e300,
        "9" * 400 + "s", "999999999999d", "5mm", "٥m",
    ],
)  # fmt: skip
def test_what_is_no_duration_is_refused_with_an_example_of_one(text: str | float) -> None:
    with pytest.raises(UnitError, match="write") as caught:
        parse_millis(text)
    assert str(caught.value).isascii()
    assert len(str(caught.value)) < 200


@given(size=st.integers(0, limits.SIZE_BYTES_MAX))
@example(size=2**60 - 1)  # a float would round it
def test_a_size_spelled_for_a_config_reads_back_exactly(size: int) -> None:
    assert parse_bytes(spell_bytes(size)) == size


@given(span=st.integers(0, limits.DURATION_MS_MAX))
def test_a_duration_spelled_for_a_config_reads_back_exactly(span: int) -> None:
    assert parse_millis(spell_millis(span)) == span


@given(number=st.integers(0, 9999), unit=st.sampled_from(["B", "kB", "MB", "GB", "KiB", "MiB", "GiB"]))
def test_a_size_is_spelled_at_least_as_shortly_as_a_person_wrote_it(number: int, unit: str) -> None:
    assert len(spell_bytes(parse_bytes(f"{number}{unit}"))) <= len(f"{number}{unit}")


@given(text=st.text(max_size=30))
def test_any_text_is_a_size_and_a_duration_or_is_refused(text: str) -> None:
    for parse in (parse_bytes, parse_millis):
        with suppress(UnitError):
            assert parse(text) >= 0


@given(size=st.integers(0, 10**15))
def test_a_size_for_people_is_right_to_three_figures_and_has_no_exponent(size: int) -> None:
    shown = format_bytes(size)
    assert "e+" not in shown
    assert parse_bytes(shown) == pytest.approx(size, rel=0.006)


@given(span=st.integers(0, limits.DURATION_MS_MAX))
def test_a_duration_for_people_is_right_to_three_figures_and_has_no_exponent(span: int) -> None:
    number, unit = format_millis(span).split()
    factor = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}[unit]
    assert "e+" not in number
    assert float(number) * factor == pytest.approx(span, rel=0.006)
