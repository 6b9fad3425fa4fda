"""The state of batches: the journal that coordinators write, and everything that follows from its entries."""
