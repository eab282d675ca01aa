"""Model files: reading, checking, finding and fetching them. Must not know: plans, engines."""
