"""Publishes sample texts at a steady rate: `publisher.py --texts N --rate PER_S -c FILE`. For trying things out.

The texts are the demo's work orders. They go through `headrace publish -`, as those of any producer would that writes
JSON lines. SIGTERM closes its input, so that what it was given is committed before it ends.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import subprocess
import sys
import threading

from headrace.demo_text import work_orders


def main() -> int:
    """Run `headrace publish -` and feed it; its exit code is ours."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=200.0, help="texts per second")
    parser.add_argument("--seed", type=int, default=1, help="another seed gives other texts")
    parser.add_argument("-c", dest="config", default="headrace.yaml")
    options = parser.parse_args()

    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    # In a group of its own: Ctrl-C must reach it as the end of its input.
    command = [sys.executable, "-m", "headrace", "publish", "-c", options.config, "-"]
    publish = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, process_group=0)
    assert publish.stdin is not None
    orders = work_orders(options.texts, options.seed)
    try:
        while not stopping.wait(1.0) and (second := list(itertools.islice(orders, max(1, round(options.rate))))):
            publish.stdin.writelines(json.dumps(order.fields(), ensure_ascii=False) + "\n" for order in second)
            publish.stdin.flush()
        publish.stdin.close()
    except BrokenPipeError:
        pass  # it has ended and said why
    return publish.wait()


if __name__ == "__main__":
    sys.exit(main())
