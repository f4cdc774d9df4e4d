"""SIGTERM waits where it was asked to, and ends the process with its status elsewhere."""

import os
import signal
import threading

import pytest

from tasklab.storage import termination


def test_a_request_waits_or_is_handed_on():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(termination.Terminated), termination.deferred() as request:
        assert not request.asked
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.asked
        raise termination.Terminated("kept")
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(termination.Terminated) as ended, termination.handled("all is kept"):
        with termination.deferred():
            os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("the request was lost")
    assert ended.value.code == 143


@pytest.mark.parametrize("swallowed", [False, True])
def test_an_end_stays_one_where_a_library_makes_another_error_of_it(swallowed):
    with pytest.raises(termination.Terminated), termination.handled("all is kept"):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except SystemExit:
            if not swallowed:
                raise ValueError("a damaged file") from None


def test_other_threads_go_on_as_usual():
    seen = []

    def work():
        with termination.deferred() as request, termination.handled("never said"):
            seen.append(request.asked)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
