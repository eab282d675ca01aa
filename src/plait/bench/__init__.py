"""Benchmarks that a user can run: ``plait bench ...``. May import anything public."""
