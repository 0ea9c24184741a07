"""Where a rank is, by the stacks that it wrote: the innermost frame of the user's own code in its main thread."""

from __future__ import annotations

from pathlib import Path

from runfold import workers
from runfold.workers.stacks import crashed_at, where

OURS = Path(workers.__file__).parent

TWO_THREADS = f"""Thread 0x00007f0000000002 (most recent call first):
  File "/lib/python3.11/threading.py", line 320 in wait
  File "/jobs/ada/job.py", line 3 in loader

Current thread 0x00007f0000000001 (most recent call first):
  File "{OURS}/ranklink.py", line 150 in receive
  File "{OURS}/session.py", line 200 in barrier
  File "/jobs/ada/job.py", line 9 in train
  File "{OURS}/rank.py", line 90 in _run
"""


def test_the_users_own_frame_is_told_as_seen_from_the_working_directory() -> None:
    assert where(TWO_THREADS, "/jobs/ada") == "job.py:9 in train"
    assert where(TWO_THREADS, None) == "/jobs/ada/job.py:9 in train"


def test_without_a_thread_that_got_the_signal_the_last_one_is_the_main_one() -> None:
    text = TWO_THREADS.replace("Current thread", "Thread")
    assert where(text, "/jobs/ada") == "job.py:9 in train"


def test_the_thread_that_got_the_signal_may_stand_first() -> None:
    first, second = TWO_THREADS.split("\n\n")
    assert where(f"{second}\n\n{first}", "/jobs/ada") == "job.py:9 in train"


def test_without_a_frame_of_the_users_own_ours_is_told() -> None:
    text = f'Current thread 0x01 (most recent call first):\n  File "{OURS}/rank.py", line 90 in _run\n'
    assert where(text, None) == f"{OURS}/rank.py:90 in _run"


def test_nothing_is_told_of_nothing() -> None:
    assert where("", None) is None
    assert where("Current thread 0x01 (most recent call first):\n  <no Python frame>\n", None) is None


CRASH = f"""epoch 3
Fatal Python error: Segmentation fault

{TWO_THREADS.partition(chr(10) * 2)[2]}
Extension modules: numpy.core._multiarray_umath (total: 1)
"""


def test_a_crash_is_told_in_the_users_own_frame() -> None:
    assert crashed_at(CRASH, "/jobs/ada") == "job.py:9 in train"
    assert crashed_at("epoch 3\n", "/jobs/ada") is None
