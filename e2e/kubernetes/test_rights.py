"""Last of all: the chart's rights were enough for every operator that ran, and none had more to do with than it may."""

import pytest
from running import ACCOUNT, when


@pytest.mark.last
def test_nothing_was_forbidden(cluster):
    mine = [event for event in cluster.audit() if event["user"]["username"] == ACCOUNT]
    assert len(mine) > 100
    # What races with the end of its namespace is refused, whoever asks, and so is what meets an API server that has only just started:
    # that isn't about rights.
    refused = [
        (event["verb"], event["requestURI"]) for event in mine
        if event.get("responseStatus", {}).get("code") == 403 and "being terminated" not in event["responseStatus"].get("message", "")
        and not any(begin <= when(event) <= end for begin, end in cluster.restarts)
    ]
    assert refused == []


@pytest.mark.last
def test_no_operator_panicked(tmp_path_factory):
    logs = list(tmp_path_factory.getbasetemp().rglob("operator-*.log"))
    assert logs
    assert [log for log in logs if "panicked at" in log.read_text()] == []
