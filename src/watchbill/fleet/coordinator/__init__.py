"""The coordinator: the process that opens batches, offers their tasks and judges the results."""
