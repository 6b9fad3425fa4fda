"""Files and batches: many requests in one upload, answered in idle time, on disk from the first byte to the last."""
