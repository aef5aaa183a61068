"""The table of payload sizes: each form is the same records, and no form that a commit has is larger."""

from __future__ import annotations

import pytest

from spark_cec.log.record import decode_records, encode_commit
from spark_cec_lab.bench.payloads import COUNTS, main, make_records, payload_bytes


@pytest.mark.parametrize("count", [10, 128, 4_500])
def test_what_a_commit_has_is_the_smallest_form(count: int) -> None:
    rows = make_records(count)
    planes, steps, written = payload_bytes(rows)
    assert written <= steps <= planes
    payload, flags = encode_commit(rows)
    assert len(payload) == written
    assert decode_records(payload, flags=flags).num_rows == count


def test_the_table_has_a_row_for_each_count(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(COUNTS)
