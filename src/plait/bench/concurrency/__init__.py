"""``plait bench concurrency``: every way to run an engine, on the same load.

One process for each run (``python -m plait.bench.concurrency`` takes a job and gives its figures, both JSON), the
candidates in turns. Parts: ``scenario`` what a load is, ``work`` its requests, ``closed_loop`` the clients,
``figures`` what is counted, ``accept`` and ``disturbance`` two probes, ``job`` one process, ``runner`` all of them,
``report`` medians, ratios and what follows from them, ``table`` and ``picture`` how that looks.
"""
