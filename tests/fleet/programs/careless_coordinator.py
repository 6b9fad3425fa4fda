"""A coordinator that does not look at the token of a result: any result counts for the task that it is about."""

from watchbill.__main__ import main
from watchbill.fleet.coordinator.active import ActiveBatches, Offer


def by_task(self: ActiveBatches, name: str) -> Offer | None:
    for batch in self.batches.values():
        for token, task in batch.ledger.by_token.items():
            if token == name or f"-{batch.ledger.batch}-{task}.a" in name:
                return Offer(batch.ledger, task)
    return None


ActiveBatches.offer_of = by_task
main()
