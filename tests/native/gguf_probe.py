"""Opens GGUF files, each in its own forked child, and prints what it cost and how it ended as JSON.

    python gguf_probe.py FILE...   ->  {"FILE": {"outcome": ..., "seconds": ..., "extra_bytes": ...}, ...}

``outcome`` is "parsed", the message of the ModelFileError, or what else happened to the child.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time

from plait.errors import ModelFileError
from plait.weights.gguf import GgufFile

ADDRESS_SPACE_SLACK = 64 << 20
PAGE_BYTES = resource.getpagesize()


def statm(field: int) -> int:
    """0: the address space of this process in bytes, 1: what of it is resident."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[field]) * PAGE_BYTES


def open_limited(path: str) -> dict[str, object]:
    """Runs in the child: the mapping itself and 64 MiB more is all the address space there is."""
    limit = statm(0) + os.path.getsize(path) + ADDRESS_SPACE_SLACK
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resident = statm(1)
    begin = time.perf_counter()
    try:
        GgufFile(path)
        outcome = "parsed"
    except ModelFileError as error:
        outcome = str(error)
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"outcome": outcome, "seconds": seconds, "extra_bytes": max(0, peak - resident)}


def probe(path: str) -> dict[str, object]:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(write_end, json.dumps(open_limited(path)).encode())
            status = 0
        except BaseException as error:
            os.write(write_end, json.dumps({"outcome": f"raised {error!r}"}).encode())
        finally:
            os._exit(status)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    result: dict[str, object] = {
        "seconds": 0.0,
        "extra_bytes": 0,
        "outcome": f"no answer, wait status {status}",
    }
    if answer:
        result |= json.loads(answer)
    return result


if __name__ == "__main__":
    print(json.dumps({path: probe(path) for path in sys.argv[1:]}))
