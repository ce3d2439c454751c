"""Waiting for a state of a cluster: shared by the tests with played and with real nodes."""

import time


def wait_until(check, what="", seconds=60, pause=0.1):
    """Asks until the answer is true, and returns it; `what` was waited for, or says how things are."""
    deadline = time.monotonic() + seconds
    while True:
        answer = check()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {seconds} s: {what() if callable(what) else what}"
        time.sleep(pause)
