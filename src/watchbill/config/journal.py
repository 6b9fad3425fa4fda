"""`[journal]` and `[alerts]`: where decisions are written down, and where alerts go."""

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field

from watchbill import catalog
from watchbill.config.values import HIDDEN, Line, Masked, Table, Url, below_root

__all__ = ["AlertsTable", "JournalTable", "build_alerts", "build_journal"]

# ------------------------------------------------------------------ the tables


def _mask_webhook(url: object) -> object:
    address = urlsplit(str(url))  # the rest of a webhook's address is what allows to post there
    return f"{address.scheme}://{address.netloc.rpartition('@')[2]}/{HIDDEN}"


Webhook = Annotated[Url, Masked(_mask_webhook)]


class JournalTable(Table):
    """The files that record every decision. Watchbill writes them, so they are relative to its root."""

    markdown: Line = Field(default="queue_log.md", description="The journal for people.")
    events: Line = Field(default="events.jsonl", description="The same for programs.")
    traffic: bool = Field(
        default=True,
        description="Keep arrivals, waits and loads of the last day for simulations: no prompts, no answers, no names "
        "of callers. Takes effect at the next start.",
    )


class AlertsTable(Table):
    """Where alerts go beside the journal and the log."""

    command: Line | None = Field(
        default=None, description="A command that gets the alert's text.", examples=["notify-send"]
    )
    webhook: Webhook | None = Field(
        default=None, description="An address that gets it as JSON.", examples=["http://127.0.0.1:9999/"]
    )


# ------------------------------------------------------------------ the catalog's records


def build_journal(table: JournalTable, base: Path) -> catalog.JournalRules:
    """Where decisions are written down."""
    return catalog.JournalRules(
        below_root(base, table.markdown), below_root(base, table.events), table.traffic
    )


def build_alerts(table: AlertsTable) -> catalog.AlertRules:
    """Where alerts go."""
    return catalog.AlertRules(table.command, table.webhook)
