"""The HTTP schema of every address, docs/openapi.json: `python tools/openapi.py` writes it anew.

One table of addresses and one of shapes. A test compares the file with the router and with this table, and asks a
running gateway whether its answers have these shapes. /v1/responses, files and batches are here, too, because their
answers are made by Watchbill and by no engine. Other addresses of other protocols are listed without shapes, which are
theirs to define; `x-protocol` says whose they are.
"""

import json
import re
import sys
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "openapi.json"

Shape = dict[str, object]

TEXT: Shape = {"type": "string"}
WHOLE: Shape = {"type": "integer"}
NUMBER: Shape = {"type": "number"}
FLAG: Shape = {"type": "boolean"}
TIER: Shape = {"enum": ["local", "peer", "burst", "external"]}


def maybe(shape: Shape) -> Shape:
    """The same, or null."""
    return {**shape, "type": [shape["type"], "null"]}


def record(**fields: Shape) -> Shape:
    """An object with exactly these keys."""
    named = {name.rstrip("_"): shape for name, shape in fields.items()}
    return {"type": "object", "properties": named, "required": list(named), "additionalProperties": False}


def asked(required: tuple[str, ...] = (), **fields: Shape) -> Shape:
    """What a caller sends: unknown keys are passed over."""
    named = {name.rstrip("_"): shape for name, shape in fields.items()}
    return {"type": "object", "properties": named, **({"required": list(required)} if required else {})}


def table(shape: Shape) -> Shape:
    """An object by name."""
    return {"type": "object", "additionalProperties": shape}


def listed(shape: Shape) -> Shape:
    """A list."""
    return {"type": "array", "items": shape}


def ref(name: str) -> Shape:
    """One of the shapes below."""
    return {"$ref": f"#/components/schemas/{name}"}


SHAPES: dict[str, Shape] = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": record(message=TEXT, type=TEXT, param={}, code=TEXT, source={"enum": ["watchbill", "engine"]}),
        },
    },
    "Alive": record(status=TEXT),
    "Device": record(
        capacity=WHOLE, reserve=WHOLE, budget=WHOLE, available=maybe(WHOLE),
        read_ms_ago=maybe(WHOLE), used=WHOLE, planned=WHOLE, loading=WHOLE, stopping=WHOLE, asleep=WHOLE, lent=WHOLE,
        emergency=FLAG, maintenance=FLAG, constrained=maybe(TEXT),
        card={"anyOf": [ref("Card"), {"type": "null"}]}, constraint=maybe(
            record(
                trouble={"enum": ["heat", "memory", "power", "throttled", "unread"]},
                figure=NUMBER, limit=NUMBER, throttled=listed(TEXT),
            )
        ),
    ),
    "Card": record(
        uuid=maybe(TEXT), total=WHOLE, temperature_c=maybe(NUMBER), power_w=maybe(NUMBER), power_limit_w=maybe(NUMBER),
        clock_mhz=maybe(WHOLE), utilisation_percent=maybe(WHOLE), throttled=listed(TEXT),
    ),
    "Model": record(
        state={"enum": [
            "absent", "planned", "loading", "ready", "draining", "stopping", "asleep", "failed", "quarantined",
        ]},
        engine=TEXT, tier=TIER, site=maybe(TEXT), leased=maybe(TEXT), aliases=listed(TEXT), memory=WHOLE,
        measured=maybe(WHOLE), abilities=listed(TEXT), asleep=maybe(WHOLE),
        devices=table(WHOLE), in_flight=WHOLE, beside=WHOLE, queued=WHOLE, loads=WHOLE, evictions=WHOLE,
        pid=maybe(WHOLE), reason=maybe(TEXT), trouble=maybe(TEXT),
        absence={"anyOf": [ref("Absence"), {"type": "null"}]}, permanent=FLAG, pinned=FLAG,
        load_ms=WHOLE, load_is_guess=FLAG, wake_ms=maybe(WHOLE), service_ms=WHOLE, service_is_guess=FLAG,
        idle_left_ms=maybe(WHOLE), retry_ms=maybe(WHOLE),
    ),
    "Absence": record(why=TEXT, device=maybe(TEXT), needed=maybe(WHOLE), room=maybe(WHOLE), cause=maybe(TEXT)),
    "Rotation": record(
        every_ms=maybe(WHOLE), interval_ms=maybe(WHOLE), next_ms=maybe(WHOLE), next_model=maybe(TEXT),
        running=maybe(TEXT),
    ),
    "Epoch": record(models=listed(TEXT), open=FLAG, ends_ms=maybe(WHOLE), next_ms=maybe(WHOLE)),
    "Alert": record(t=NUMBER, kind=TEXT, text=TEXT, model=maybe(TEXT), device=maybe(TEXT)),
    "Engine": record(
        driver=TEXT, capabilities=table({"type": ["boolean", "string"]}), silence=maybe(TEXT), places=maybe(WHOLE)
    ),
    "Lane": record(class_=TEXT, queued=WHOLE, running=WHOLE, oldest_wait_ms=WHOLE),
    "Claim": record(why=TEXT, pid=maybe(WHOLE), empty=FLAG, renewed_ms=WHOLE, ends_ms=maybe(WHOLE)),
    "Loan": record(
        device=TEXT, memory=WHOLE, used=WHOLE, peak=WHOLE, why=TEXT, pid=maybe(WHOLE), granted=FLAG, renewed_ms=WHOLE,
        ends_ms=maybe(WHOLE),
    ),
    "Loans": record(loans=table(ref("Loan"))),
    "DoorDone": record(message=TEXT, name=TEXT, port=WHOLE, lane=TEXT, model=maybe(TEXT)),
    "LoanDone": record(message=TEXT, id=TEXT, device=TEXT, memory=WHOLE),
    "LoanEnded": record(message=TEXT, id=TEXT, device=TEXT, memory=WHOLE, peak=WHOLE),
    "Spool": record(
        waiting=WHOLE, leased=WHOLE, poison=WHOLE, appended=WHOLE, duplicates=WHOLE, poisoned=WHOLE, released=WHOLE,
        complaint=TEXT, capture_stored=WHOLE, capture_waiting=WHOLE, capture_dropped=WHOLE,
    ),
    "Program": record(pid=maybe(WHOLE), starts=WHOLE, last_end=TEXT),
    "Status": record(
        version=TEXT, devices=table(ref("Device")), models=table(ref("Model")), lanes=table(ref("Lane")), policy=TEXT,
        policy_doubt=maybe(TEXT), late_answers=WHOLE, engines=table(ref("Engine")), maintenance=table(ref("Claim")),
        spools=table(ref("Spool")), programs=table(ref("Program")), policy_failures=WHOLE, policy_failure=maybe(TEXT),
        rotation=ref("Rotation"), epochs=table(ref("Epoch")), alerts=listed(ref("Alert")), loans=table(ref("Loan")),
        tiers=table(ref("Tier")), leases=table(ref("Lease")),
        batches={"anyOf": [ref("Batches"), {"type": "null"}]},
        unused_cards=maybe(record(cards=TEXT, why=TEXT, mend=TEXT)),
    ),
    "Lease": record(peer=TEXT, model=TEXT, renewed_ms=WHOLE, resting=FLAG),
    "LeaseGiven": record(id=TEXT, model=TEXT, lasts_ms=WHOLE, renew_ms=WHOLE, continues=FLAG),
    "LeaseRenewed": record(id=TEXT, lasts_ms=WHOLE, renew_ms=WHOLE),
    "LeaseEnded": record(id=TEXT, message=TEXT),
    "Tier": record(
        tier=TIER, enabled=FLAG, closed=FLAG, spent_today=NUMBER, daily=maybe(NUMBER), models=table(TEXT),
        in_flight=WHOLE, queued=WHOLE, reason=maybe(TEXT),
    ),
    "Batches": record(
        open=WHOLE, ended=WHOLE, waiting=WHOLE, running=WHOLE, answered=WHOLE, failed=WHOLE, repeated=WHOLE,
        files=WHOLE, bytes=WHOLE, paused={"enum": [None, "disk_full", "disk_failed", "disk_max"]},
    ),
    "Request": record(
        id=TEXT, model=TEXT, asked=TEXT, lane=TEXT, class_=TEXT, priority=WHOLE, state={"enum": ["waiting", "running"]},
        companions=listed(TEXT), position=maybe(WHOLE), reason=TEXT, waited_ms=WHOLE, ran_ms=maybe(WHOLE),
        forecast_ms=maybe(WHOLE), starts_in_ms=maybe(WHOLE), due_ms=maybe(WHOLE),
    ),
    "Requests": record(requests=listed(ref("Request"))),
    "Cancelled": record(message=TEXT, id=TEXT),
    "JournalLine": record(
        t=TEXT, event=TEXT, model=maybe(TEXT), device=maybe(TEXT), reason=TEXT, ms=maybe(WHOLE), bytes=maybe(WHOLE),
        request=maybe(TEXT),
    ),
    "JournalLines": record(lines=listed(ref("JournalLine")), whole=FLAG),
    "LogLines": record(model=TEXT, lines=listed(TEXT)),
    "Poison": record(
        total=WHOLE, events=listed(record(
            event=TEXT, events=WHOLE, attempt=WHOLE, bytes=WHOLE, age_ms=WHOLE, reason=maybe(TEXT), content=TEXT,
        )),
    ),
    "Plans": record(
        coordinator=record(host=TEXT, pid=WHOLE, epoch=WHOLE, is_dead=FLAG, silent_ms=WHOLE),
        agents=table({"type": "object"}), batches=listed({"type": "object"}),
    ),
    "Library": record(
        models=listed(record(
            name=TEXT, aliases=listed(TEXT), origin={"enum": ["config", "named", "folder", "ollama"]}, engine=TEXT,
            size=maybe(WHOLE), modified_s=maybe(NUMBER),
        )),
        passed=listed(record(file=TEXT, why=TEXT, detail=TEXT)),
    ),
    "Requeued": record(message=TEXT, moved=WHOLE),
    "Simulated": record(
        since_ms=WHOLE, until_ms=WHOLE, requests=WHOLE, left_out=WHOLE, svg=TEXT,
        runs=listed(record(
            name=TEXT, loads=NUMBER,
            classes=table(record(
                requests=NUMBER, answered=NUMBER, refused=NUMBER, wait_p50_ms=NUMBER, wait_p95_ms=NUMBER,
            )),
        )),
    ),
    "Simulations": record(running=FLAG, kept=FLAG, last={"type": ["object", "null"]}),
    "SimulationCancelled": record(message=TEXT),
    "Explanation": record(
        model=TEXT, state=TEXT, absent_because=maybe(TEXT), verdict=TEXT, reason=TEXT, companions=table(TEXT),
        served_by=maybe(TEXT), tier={"enum": ["local", "peer", "burst", "external", None]}, sites=table(TEXT),
        leaving=listed(TEXT),
        expected_ms=maybe(WHOLE), pressure_per_s=NUMBER, momentum_per_s=table(NUMBER), own_momentum_per_s=NUMBER,
        terms=ref("Terms"), policy=TEXT,
        inertia=NUMBER, load_ms=WHOLE, load_is_guess=FLAG, service_ms=WHOLE, memory=WHOLE, queued=WHOLE,
    ),
    "Terms": record(
        waiting=NUMBER, coming=NUMBER, round_trip_ms=WHOLE, residual_ms=WHOLE, load_ms=WHOLE, reload_ms=WHOLE,
        quantum_ms=WHOLE, linger_ms=WHOLE, rebuild_ms=table(WHOLE), asked_per_s=table(NUMBER),
    ),
    "ModelDone": record(message=TEXT, model=TEXT),
    "Evicted": record(message=TEXT, model=TEXT, waiting=WHOLE),
    "DeviceDone": record(message=TEXT, device=TEXT),
    "Reloaded": record(message=TEXT, changes=listed(TEXT), since=TEXT),
    "Thought": record(
        id=TEXT, type=TEXT, thought=TEXT, fallback=FLAG, error=maybe(TEXT), model=maybe(TEXT), lane=TEXT,
        created_at=TEXT, wait_ms=WHOLE,
    ),
    "Response": {
        **record(
            id=TEXT, object={"const": "response"}, created_at=WHOLE, status={"enum": [
                "queued", "in_progress", "completed", "incomplete", "failed", "cancelled",
            ]},
            background=FLAG, completed_at=maybe(WHOLE), error=maybe({"type": "object"}),
            incomplete_details=maybe({"type": "object"}), instructions=maybe(TEXT), max_output_tokens=maybe(WHOLE),
            max_tool_calls={}, previous_response_id=maybe(TEXT), prompt_cache_key={}, safety_identifier={},
            temperature=maybe(NUMBER), top_p=maybe(NUMBER), user={}, metadata=table(TEXT), model=TEXT,
            output=listed({"type": "object"}), parallel_tool_calls=FLAG, reasoning={"type": "object"},
            service_tier=TEXT, store=FLAG, text={"type": "object"}, tool_choice={"type": ["string", "object"]},
            tools=listed({"type": "object"}), top_logprobs=WHOLE, truncation=TEXT, usage=maybe({"type": "object"}),
        ),
        "additionalProperties": True,
    },
    "ResponseItems": record(
        object={"const": "list"}, data=listed({"type": "object"}), first_id=maybe(TEXT), last_id=maybe(TEXT),
        has_more=FLAG,
    ),
    "ResponseDeleted": record(id=TEXT, object={"const": "response"}, deleted={"const": True}),
    "File": record(
        id=TEXT, object={"const": "file"}, bytes=WHOLE, created_at=WHOLE, expires_at=WHOLE, filename=TEXT,
        purpose={"enum": ["batch", "batch_output"]}, status={"const": "processed"}, status_details=maybe(TEXT),
    ),
    "Files": record(
        object={"const": "list"}, data=listed(ref("File")), first_id=maybe(TEXT), last_id=maybe(TEXT), has_more=FLAG,
    ),
    "Batch": record(
        id=TEXT, object={"const": "batch"}, endpoint=TEXT, errors=maybe(record(
            object={"const": "list"},
            data=listed(record(code=TEXT, message=TEXT, line=maybe(WHOLE), param=maybe(TEXT))),
        )),
        input_file_id=TEXT, completion_window=TEXT, status={"enum": [
            "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled",
        ]},
        output_file_id=maybe(TEXT), error_file_id=maybe(TEXT), created_at=WHOLE, in_progress_at=maybe(WHOLE),
        expires_at=WHOLE, finalizing_at=maybe(WHOLE), completed_at=maybe(WHOLE), failed_at=maybe(WHOLE),
        expired_at=maybe(WHOLE), cancelling_at=maybe(WHOLE), cancelled_at=maybe(WHOLE),
        request_counts=record(total=WHOLE, completed=WHOLE, failed=WHOLE),
        metadata={"type": ["object", "null"], "additionalProperties": TEXT},
    ),
    "BatchList": record(
        object={"const": "list"}, data=listed(ref("Batch")), first_id=maybe(TEXT), last_id=maybe(TEXT), has_more=FLAG,
    ),
    "AnthropicError": {
        "type": "object",
        "required": ["type", "error"],
        "properties": {"type": {"const": "error"}, "error": {"type": "object", "required": ["type", "message"]}},
    },
    "MessageBatch": record(
        id=TEXT, type={"const": "message_batch"}, processing_status={"enum": ["in_progress", "canceling", "ended"]},
        request_counts=record(processing=WHOLE, succeeded=WHOLE, errored=WHOLE, canceled=WHOLE, expired=WHOLE),
        created_at=TEXT, expires_at=TEXT, ended_at=maybe(TEXT), cancel_initiated_at=maybe(TEXT),
        archived_at=maybe(TEXT), results_url=maybe(TEXT),
    ),
    "MessageBatches": record(
        data=listed(ref("MessageBatch")), first_id=maybe(TEXT), last_id=maybe(TEXT), has_more=FLAG,
    ),
    "MessageBatchDeleted": record(id=TEXT, type={"const": "message_batch_deleted"}),
    "FileDeleted": record(id=TEXT, object={"const": "file"}, deleted={"const": True}),
    "ResponseTokens": {
        **record(object={"const": "response.input_tokens"}, input_tokens=WHOLE), "additionalProperties": True,
    },
}  # fmt: skip

NOTHING = asked()
EVICT = asked(force=FLAG)
PIN = asked(pinned=FLAG)
CLAIM = asked(
    ("device",), device=TEXT, for_={"type": "string", "maxLength": 200}, pid={"type": "integer", "minimum": 1},
    hours={"type": "number", "exclusiveMinimum": 0, "maximum": 168},
)  # fmt: skip
LOAN = asked(
    ("memory",), memory={"type": ["string", "integer"]}, device=TEXT, for_={"type": "string", "maxLength": 200},
    pid={"type": "integer", "minimum": 1}, hours={"type": "number", "exclusiveMinimum": 0, "maximum": 168},
    evict_idle=FLAG,
)  # fmt: skip
DOOR = asked(
    ("name",), name={"type": "string", "maxLength": 64}, model=TEXT, lane=TEXT,
    port={"type": "integer", "minimum": 0, "maximum": 65535},
)  # fmt: skip
USER = asked(user=WHOLE)
LEASE = asked(("model",), model=TEXT)
REQUEUE = asked(event=TEXT)
SIMULATE = asked(
    memory=table(TEXT), policy={"enum": ["rate", "turns", "fifo", "exhaustive", None]},
    hours={"type": "number", "exclusiveMinimum": 0, "maximum": 24},
)  # fmt: skip
RENEW = asked(("device",), device=TEXT)
#: The fields of docs/responses.md, as far as they have a plain shape.
RESPONSE = asked(
    ("model", "input"), model=TEXT, input={"type": ["string", "array"]}, instructions=maybe(TEXT), stream=maybe(FLAG),
    store=maybe(FLAG), background=maybe(FLAG), previous_response_id=maybe(TEXT),
    max_output_tokens={"type": ["integer", "null"], "minimum": 1}, metadata={"type": ["object", "null"]},
    temperature=maybe(NUMBER), top_p=maybe(NUMBER), tools={"type": ["array", "null"]},
    tool_choice={"type": ["string", "object", "null"]}, text={"type": ["object", "null"]},
    reasoning={"type": ["object", "null"]}, include={"type": ["array", "null"]}, truncation=maybe(TEXT),
    parallel_tool_calls=maybe(FLAG), top_logprobs=maybe(WHOLE),
)  # fmt: skip
WORK = asked(("type",), type=TEXT, id={"type": "string", "maxLength": 64}, payload={"type": "object"})

BATCH: Shape = asked(
    ("endpoint", "input_file_id", "completion_window"),
    endpoint={"enum": ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]},
    input_file_id=TEXT,
    completion_window={"const": "24h"},
    metadata={"type": ["object", "null"], "additionalProperties": TEXT},
)
MESSAGE_BATCH: Shape = asked(
    ("requests",), requests=listed(asked(("custom_id", "params"), custom_id=TEXT, params={"type": "object"}))
)
#: A form: what this names is sent as multipart/form-data.
UPLOAD: Shape = asked(
    ("file", "purpose"), file={"type": "string", "format": "binary"}, purpose={"const": "batch"}
)
#: method, address, what it does, the body it takes, what it answers, its parameters
ADDRESSES: tuple[tuple[str, str, str, Shape | None, str, tuple[str, ...]], ...] = (
    ("get", "/health", "Whether the process is alive.", None, "Alive", ()),
    ("get", "/ready", "Whether the scheduler turns.", None, "Alive", ()),
    ("get", "/metrics", "Figures for Prometheus.", None, "text/plain", ()),
    ("post", "/v1/responses", "Makes a response.", RESPONSE, "Response|text/event-stream", ()),
    ("post", "/v1/responses/input_tokens", "Counts its tokens.", RESPONSE, "ResponseTokens", ()),
    ("get", "/v1/responses/{id}", "A kept response.", None, "Response", ("id",)),
    ("delete", "/v1/responses/{id}", "Forgets a response.", None, "ResponseDeleted", ("id",)),
    (
        "post",
        "/v1/responses/{id}/cancel",
        "Ends one that is made in the background.",
        None,
        "Response",
        ("id",),
    ),
    ("get", "/v1/responses/{id}/input_items", "The items of its turn.", None, "ResponseItems", ("id",)),
    ("post", "/v1/files", "Keeps a file for batches.", UPLOAD, "File", ()),
    (
        "get",
        "/v1/files",
        "The files of this key.",
        None,
        "Files",
        ("?after?", "?limit?", "?order?", "?purpose?"),
    ),
    ("get", "/v1/files/{id}", "A file.", None, "File", ("id",)),
    ("get", "/v1/files/{id}/content", "Its content.", None, "application/octet-stream", ("id",)),
    ("delete", "/v1/files/{id}", "Removes a file.", None, "FileDeleted", ("id",)),
    ("post", "/v1/batches", "Has the lines of a file answered.", BATCH, "Batch", ()),
    ("get", "/v1/batches", "The batches of this key.", None, "BatchList", ("?after?", "?limit?")),
    ("get", "/v1/batches/{id}", "A batch.", None, "Batch", ("id",)),
    ("post", "/v1/batches/{id}/cancel", "Ends a batch.", None, "Batch", ("id",)),
    ("post", "/v1/messages/batches", "Has messages answered.", MESSAGE_BATCH, "MessageBatch", ()),
    (
        "get",
        "/v1/messages/batches",
        "The message batches of this key.",
        None,
        "MessageBatches",
        ("?after_id?", "?before_id?", "?limit?"),
    ),
    ("get", "/v1/messages/batches/{id}", "A message batch.", None, "MessageBatch", ("id",)),
    (
        "delete",
        "/v1/messages/batches/{id}",
        "Removes one that has ended.",
        None,
        "MessageBatchDeleted",
        ("id",),
    ),
    ("post", "/v1/messages/batches/{id}/cancel", "Ends a message batch.", None, "MessageBatch", ("id",)),
    ("get", "/v1/messages/batches/{id}/results", "Its results.", None, "application/x-jsonl", ("id",)),
    ("get", "/wb/v1/status", "Devices, models, lanes, spools, batches and programs.", None, "Status", ()),
    (
        "get",
        "/wb/v1/library",
        "Every model with its size and origin, and files that are none.",
        None,
        "Library",
        (),
    ),
    ("get", "/wb/v1/events", "The journal as it is written.", None, "text/event-stream", ()),
    (
        "get",
        "/wb/v1/explain",
        "What would happen if a model were asked for now.",
        None,
        "Explanation",
        ("?model", "?with?"),
    ),
    (
        "get",
        "/wb/v1/live",
        "What the page shows: all of it, then what changed.",
        None,
        "text/event-stream",
        (),
    ),
    (
        "get",
        "/wb/v1/journal",
        "Lines of the journal, the newest first.",
        None,
        "JournalLines",
        ("?text?", "?about?", "?hours?", "?lines?"),
    ),
    (
        "get",
        "/wb/v1/models/{name}/log",
        "The end of its engine's log.",
        None,
        "LogLines",
        ("name", "?lines?"),
    ),
    ("get", "/wb/v1/plans", "Coordinator, agents, and the last batches of plans.", None, "Plans", ()),
    ("get", "/wb/v1/spools/{name}/poison", "Its oldest poisoned events.", None, "Poison", ("name",)),
    (
        "post",
        "/wb/v1/spools/{name}/requeue",
        "Poisoned events go back into the queue.",
        REQUEUE,
        "Requeued",
        ("name",),
    ),
    ("get", "/wb/v1/simulate", "Whether a simulation runs, and the last one.", None, "Simulations", ()),
    ("post", "/wb/v1/simulate", "Simulates the last day's traffic.", SIMULATE, "Simulated", ()),
    ("delete", "/wb/v1/simulate", "Ends the simulation that runs.", None, "SimulationCancelled", ()),
    ("post", "/wb/v1/leases", "A peer asks for a lease.", LEASE, "LeaseGiven", ()),
    ("post", "/wb/v1/leases/{id}/renew", "The peer lives.", None, "LeaseRenewed", ("id",)),
    ("delete", "/wb/v1/leases/{id}", "The peer gives it back.", None, "LeaseEnded", ("id",)),
    ("get", "/wb/v1/requests", "Every open request.", None, "Requests", ()),
    ("get", "/wb/v1/requests/{id}", "One open request.", None, "Request", ("id",)),
    ("delete", "/wb/v1/requests/{id}", "Cancels a request.", None, "Cancelled", ("id",)),
    ("post", "/wb/v1/models/{name}/load", "Brings a model into memory.", NOTHING, "ModelDone", ("name",)),
    ("post", "/wb/v1/models/{name}/evict", "Takes a model out of memory.", EVICT, "Evicted", ("name",)),
    ("post", "/wb/v1/models/{name}/pin", "Whether it stays in memory.", PIN, "ModelDone", ("name",)),
    ("post", "/wb/v1/config/reload", "Reads the config again.", NOTHING, "Reloaded", ()),
    ("post", "/wb/v1/maintenance", "Empties a device and keeps it.", CLAIM, "DeviceDone", ()),
    ("post", "/wb/v1/maintenance/renew", "The holder still lives.", RENEW, "DeviceDone", ()),
    ("delete", "/wb/v1/maintenance", "Gives a device back.", None, "DeviceDone", ("?device",)),
    ("get", "/wb/v1/loans", "Memory that is lent.", None, "Loans", ()),
    ("post", "/wb/v1/loans", "Borrows an amount of memory.", LOAN, "LoanDone", ()),
    (
        "post",
        "/wb/v1/loans/{id}/renew",
        "The holder still lives; `user` is who uses it.",
        USER,
        "LoanDone",
        ("id",),
    ),
    ("delete", "/wb/v1/loans/{id}", "Gives a loan back.", None, "LoanEnded", ("id",)),
    ("post", "/wb/v1/doors", "A further address with a lane and a model of its own.", DOOR, "DoorDone", ()),
    ("post", "/process", "A thought about an event.", WORK, "Thought", ()),
)
#: What Azure's clients have in place of /v1.
AZURE = ("/openai/v1", "/openai")
#: Addresses of other protocols: whose, methods, addresses.
FOREIGN: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("openai", "post", (
        "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/chat/completions", "/completions", "/embeddings",
        "/v1/audio/speech", "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/generations",
        "/v1/images/edits", "/v1/images/variations", "/v1/responses/compact",
    )),
    ("openai", "get", ("/v1/models", "/v1/models/{id}", "/models", "/v1/audio/voices", "/v1/realtime")),
    ("openai", "post", (
        "/responses", "/responses/input_tokens", "/responses/compact", "/responses/{id}/cancel", "/files", "/batches",
        "/batches/{id}/cancel", "/audio/speech", "/audio/transcriptions", "/audio/translations", "/images/generations",
        "/images/edits", "/images/variations",
    )),
    ("openai", "get", (
        "/models/{id}", "/responses/{id}", "/responses/{id}/input_items", "/files", "/files/{id}",
        "/files/{id}/content", "/batches", "/batches/{id}", "/audio/voices",
    )),
    ("openai", "delete", ("/responses/{id}", "/files/{id}")),
    ("anthropic", "post", (
        "/messages", "/messages/count_tokens", "/messages/batches", "/messages/batches/{id}/cancel",
    )),
    ("anthropic", "get", ("/messages/batches", "/messages/batches/{id}", "/messages/batches/{id}/results")),
    ("anthropic", "delete", ("/messages/batches/{id}",)),
    ("azure", "post", (
        *(each + path for each in AZURE for path in (
            "/responses", "/responses/input_tokens", "/responses/compact", "/responses/{id}/cancel",
            "/files", "/batches", "/batches/{id}/cancel",
        )),
        *(each + path for each in ("/openai/v1", "/openai/deployments/{deployment}") for path in (
            "/chat/completions", "/completions", "/embeddings", "/audio/speech", "/audio/transcriptions",
            "/audio/translations", "/images/generations", "/images/edits", "/images/variations",
        )),
    )),
    ("azure", "get", tuple(each + path for each in AZURE for path in (
        "/models", "/models/{id}", "/responses/{id}", "/responses/{id}/input_items", "/files", "/files/{id}",
        "/files/{id}/content", "/batches", "/batches/{id}",
    ))),
    ("azure", "delete", tuple(each + path for each in AZURE for path in ("/responses/{id}", "/files/{id}"))),
    ("anthropic", "post", ("/v1/messages", "/v1/messages/count_tokens")),
    ("lm-studio", "post", ("/api/v0/chat/completions", "/api/v0/completions", "/api/v0/embeddings")),
    ("lm-studio", "get", ("/api/v0/models", "/api/v0/models/{id}")),
    ("ollama", "get", ("/", "/api/version", "/api/status", "/api/tags", "/api/ps")),
    ("ollama", "post", (
        "/api/show", "/api/generate", "/api/chat", "/api/embed", "/api/embeddings", "/api/pull", "/api/push",
        "/api/copy", "/api/create", "/api/blobs/{digest}",
    )),
    ("ollama", "delete", ("/api/delete",)),
    ("llama-swap", "get", ("/running", "/unload", "/logs", "/logs/stream", "/logs/stream/{which}", "/ui", "/ui/")),
    ("llama-swap", "post", ("/unload", "/api/models/unload", "/api/models/unload/{name}")),
    *(("llama-swap", method, ("/upstream/{tail}",)) for method in ("get", "post", "put", "patch", "delete")),
    ("reranking", "post", ("/v1/rerank", "/v1/reranking", "/v2/rerank", "/rerank", "/reranking")),
    ("llama.cpp", "post", ("/infill", "/tokenize", "/detokenize", "/apply-template")),
    ("llama.cpp", "get", ("/props", "/slots")),
    ("page", "get", ("/page/{name}",)),
)  # fmt: skip
_VARIABLE = re.compile(r"\{(\w+)\}")
_JSON = "application/json"
_FORM = "multipart/form-data"


def document() -> Shape:
    """The whole schema."""
    paths: dict[str, Shape] = {}
    for method, path, what, body, answer, parameters in ADDRESSES:
        paths.setdefault(path, {})[method] = _operation(path, what, body, answer, parameters)
    for protocol, method, addresses in FOREIGN:
        for path in addresses:
            paths.setdefault(path, {})[method] = _foreign(protocol, path)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Watchbill",
            "version": "1",
            "description": "Watchbill's own addresses, /v1/responses, files and batches, with Error for errors; and "
            "those of other protocols (x-protocol), whose shapes are theirs.",
        },
        "paths": paths,
        "components": {"schemas": SHAPES},
    }


def text() -> str:
    """The schema as it is stored."""
    return json.dumps(document(), indent=1) + "\n"


def _operation(path: str, what: str, body: Shape | None, answer: str, parameters: tuple[str, ...]) -> Shape:
    content = {
        each if "/" in each else _JSON: {"schema": TEXT if "/" in each else ref(each)}
        for each in answer.split("|")
    }
    shape = "AnthropicError" if path.startswith("/v1/messages/") else "Error"
    failed = {"description": "What went wrong.", "content": {_JSON: {"schema": ref(shape)}}}
    unready = {"description": "Not ready.", "content": {_JSON: {"schema": ref("Alive")}}}
    told: Shape = {
        "summary": what,
        "responses": {
            "200": {"description": what, "content": content},
            "4XX": failed,
            "503": unready if path == "/ready" else failed,
        },
    }
    if parameters:
        told["parameters"] = [_parameter(name) for name in parameters]
    if body is not None:
        # An operator's call may come without a body; work needs one.
        kind = _FORM if body is UPLOAD else _JSON
        told["requestBody"] = {"required": "required" in body, "content": {kind: {"schema": body}}}
    return told


def _foreign(protocol: str, path: str) -> Shape:
    """An address of another protocol."""
    told: Shape = {
        "x-protocol": protocol,
        "responses": {"default": {"description": f"As {protocol} has it."}},
    }
    variables = _VARIABLE.findall(path)
    return {**told, "parameters": [_parameter(name) for name in variables]} if variables else told


def _parameter(name: str) -> Shape:
    """`name` in the path, `?name` in the query, `?name?` in the query or left out."""
    where = "query" if name.startswith("?") else "path"
    return {
        "name": name.strip("?"),
        "in": where,
        "required": not name.endswith("?"),
        "schema": {"type": "string", "minLength": 1},
    }


if __name__ == "__main__":
    sys.exit(None if DOCUMENT.write_text(text()) else 1)
