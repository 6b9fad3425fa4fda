"""What becomes of each documented part of files and batches: it works, is ignored, or is refused. Data only.

The tables of docs/batches.md have the same rows; a test compares them, and asks a gateway whether they are true.
"""

from collections.abc import Mapping

from watchbill.errors import RequestError
from watchbill.gateway.dialects.treatment import Treatment
from watchbill.quoting import quoted

__all__ = [
    "BATCH", "BATCH_FIELDS", "ENDPOINTS", "FILE_FIELDS", "MESSAGE_BATCH", "MESSAGE_BATCH_FIELDS", "PURPOSES",
    "check_fields",
]  # fmt: skip

_WORKS, _IGNORED, _REFUSED = Treatment.WORKS, Treatment.IGNORED, Treatment.REFUSED

#: Fields of the form that uploads a file.
FILE_FIELDS: Mapping[str, Treatment] = dict.fromkeys(("file", "purpose", "expires_after"), _WORKS)

#: What a file may be for.
PURPOSES: Mapping[str, Treatment] = {
    "batch": _WORKS,
    **dict.fromkeys(("assistants", "fine-tune", "vision", "user_data", "evals"), _REFUSED),
}

#: Fields of the request that makes a batch.
BATCH_FIELDS: Mapping[str, Treatment] = dict.fromkeys(
    ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after"), _WORKS
)

#: What the lines of a batch may ask.
ENDPOINTS: Mapping[str, Treatment] = {
    **dict.fromkeys(("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"), _WORKS),
    **dict.fromkeys(
        ("/v1/images/edits", "/v1/images/generations", "/v1/moderations", "/v1/videos"), _REFUSED
    ),
}

#: Fields of a batch.
BATCH: Mapping[str, Treatment] = {
    **dict.fromkeys((
        "id", "object", "endpoint", "errors", "input_file_id", "completion_window", "status", "output_file_id",
        "error_file_id", "created_at", "in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at",
        "expired_at", "cancelling_at", "cancelled_at", "request_counts", "metadata", "model", "usage",
    ), _WORKS),
}  # fmt: skip

#: Fields of the request that makes a batch of messages.
MESSAGE_BATCH_FIELDS: Mapping[str, Treatment] = {
    "requests": _WORKS, "betas": _IGNORED, "user_profile_id": _IGNORED, "workspace_id": _IGNORED,
}  # fmt: skip

#: Fields of a batch of messages.
MESSAGE_BATCH: Mapping[str, Treatment] = dict.fromkeys(
    (
        "id", "type", "processing_status", "request_counts", "created_at", "expires_at", "ended_at",
        "cancel_initiated_at", "results_url", "archived_at",
    ), _WORKS,
)  # fmt: skip


def check_fields(body: Mapping[str, object], known: Mapping[str, Treatment]) -> None:
    """Raises RequestError for a field that would have no effect. One that is null is as good as left out."""
    for name, value in body.items():
        if name not in known and value is not None:
            raise RequestError(f"{quoted(name)} is no field of this request; there are {', '.join(known)}")
