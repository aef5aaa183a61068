"""The campaign of damages and faults in a short form, the table of the tests on servers, and what both count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cec_it import storage_campaign, storage_servers
from cec_it.damages.kinds import KINDS
from cec_it.storage_campaign import Row, is_named, judge
from spark_cec.agent import stores
from spark_cec.checkpoint.eventual import EventualCheckpoint, rebuild
from tests.agent.support import Refused


def test_a_short_campaign_finds_no_wrong_state(capsys: pytest.CaptureFixture[str]) -> None:
    assert storage_campaign.main(["--seed", "3", "--runs", str(len(KINDS)), "--wire", "0"]) == 0
    assert f"| all | {len(KINDS)} |" in capsys.readouterr().out


def test_a_wrong_state_is_found(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a load left a row out."""

    def leave_out(*given: Any) -> EventualCheckpoint:
        whole = rebuild(*given)
        return replace(whole, records=whole.records.slice(1))

    monkeypatch.setattr(stores, "rebuild", leave_out)
    assert storage_campaign.main(["--seed", "3", "--runs", "2", "--wire", "0"]) == 1
    assert "must be" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "says", "named"),
    [
        ("DamagedLog", "damaged log: store 0/1/default", True),
        ("OSError", "Traceback ... [Errno 5] no: 's3a://bucket/x'", True),
        ("OSError", "Traceback ... [Errno 5] no", False),
        ("KeyError", "Traceback ... 's3a://bucket/x'", False),
        ("NoAnswer", "s3a://bucket/x: the storage does not answer (503)", True),
        ("NoAnswer", "the storage does not answer (503)", False),
        ("NoAnswer", "Traceback ... 's3a://bucket/x'", False),
    ],
)
def test_an_error_is_named_or_not(kind: str, says: str, named: bool) -> None:
    assert is_named(Refused(kind, says)) == named
    row = Row()
    judge(row, "run 1", lambda: [Refused(kind, says)], must_be_exact=False)
    assert (row.named, row.unnamed, row.is_good) == (int(named), int(not named), named)


def test_an_error_where_nothing_may_be_noticed_is_one_too_many() -> None:
    row = Row()
    judge(row, "run 1", lambda: [Refused("DamagedLog", "damaged")], must_be_exact=True)
    assert not row.is_good and row.examples


def test_the_table_tells_why_a_server_was_skipped(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite>"
        '<testcase classname="integration-tests.servers.test_versity.TestVersityGateway" name="a[1.5]"/>'
        '<testcase classname="integration-tests.servers.test_versity.TestVersityGateway" name="b"><failure/></testcase>'
        '<testcase classname="" name="integration-tests.servers.test_azurite"><skipped message="no npm"/></testcase>'
        "</testsuite></testsuites>"
    )
    rows = storage_servers.read_report(report)
    assert (rows["test_versity"].passed, rows["test_versity"].failed, rows["test_azurite"].skipped) == (1, 1, 1)
    said = storage_servers.table(rows)
    assert "| versitygw | v1.8.0 | 1 | 1 | 0 |  |" in said and "| azurite | 3.37.0 | 0 | 0 | 1 | no npm |" in said
