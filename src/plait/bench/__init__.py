"""Benchmarks that a user can run: ``plait bench ...``. May import anything public.

Every result is a JSON object with a machine block: numbers without their machine mean nothing.
"""
