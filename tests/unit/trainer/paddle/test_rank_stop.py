"""A stop reaches a rank whatever its libraries did to the signal: Paddle takes SIGTERM, PaddleNLP resets it."""

from __future__ import annotations

import subprocess
import sys

RANK = """
import os, signal, sys
from headrace.pipeline.child import Channel
from headrace.trainer import rank

channel = Channel(sys.stdout)
channel.hold_stop()
rank._join(None)
channel.catch_stop()
from headrace.trainer import evaluate, model, step
from headrace.trainer.tasks import classification, masked_lm
os.kill(os.getpid(), signal.SIGTERM)
sys.exit(0 if channel.stopping.wait(10) else 1)
"""


def test_sigterm_is_caught_after_everything_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", RANK], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
