"""One run of ``plait bench concurrency``: a job as JSON comes in, its figures or an error go out."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from plait.bench.concurrency.job import Job, run_job
from plait.bench.concurrency.records import read_record
from plait.errors import PlaitError


def main() -> None:
    job = read_record(Job, json.loads(sys.stdin.read()), "job")
    try:
        reply: dict[str, object] = {"result": asdict(run_job(job))}
    except PlaitError as error:
        reply = {"error": str(error)}
    print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
