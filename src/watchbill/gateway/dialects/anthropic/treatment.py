"""What becomes of each documented part of Anthropic's Messages API: it works, is ignored, or is refused. Data only.

The tables of docs/messages.md have the same rows; a test compares them, and asks a gateway whether they are true.
"""

from collections.abc import Mapping

from watchbill.gateway.dialects.treatment import Treatment

__all__ = ["BLOCKS", "DELTAS", "EVENTS", "FIELDS", "SOURCES", "STOP_REASONS", "TOOLS"]

_WORKS, _IGNORED, _REFUSED = Treatment.WORKS, Treatment.IGNORED, Treatment.REFUSED

#: Fields of a request.
FIELDS: Mapping[str, Treatment] = {
    **dict.fromkeys((
        "max_tokens", "messages", "model", "output_config", "output_format", "stop_sequences", "stream", "system",
        "temperature", "thinking", "tool_choice", "tools", "top_k", "top_p",
    ), _WORKS),
    **dict.fromkeys((
        "betas", "cache_control", "context_management", "diagnostics", "inference_geo", "metadata", "service_tier",
        "speed", "user_profile_id", "workspace_id",
    ), _IGNORED),
    **dict.fromkeys((
        "compaction", "container", "fallback_credit_token", "fallbacks", "mcp_servers", "thread",
    ), _REFUSED),
}  # fmt: skip

#: Blocks of a message, and of what a tool returned.
BLOCKS: Mapping[str, Treatment] = {
    **dict.fromkeys((
        "text", "image", "document", "search_result", "thinking", "tool_use", "tool_result",
    ), _WORKS),
    "redacted_thinking": _IGNORED,
    **dict.fromkeys((
        "advisor_tool_result", "bash_code_execution_tool_result", "browser_state", "code_execution_tool_result",
        "compaction", "container_upload", "fallback", "mcp_tool_listing", "mcp_tool_result", "mcp_tool_use",
        "server_tool_use", "text_editor_code_execution_tool_result", "tool_addition", "tool_reference",
        "tool_removal", "tool_search_tool_result", "web_fetch_tool_result", "web_search_tool_result",
    ), _REFUSED),
}  # fmt: skip

#: Sources of an image, and of a document, as `BLOCK.TYPE`.
SOURCES: Mapping[str, Treatment] = {
    "image.base64": _WORKS, "image.url": _WORKS, "image.file": _REFUSED,
    "document.text": _WORKS, "document.content": _WORKS, "document.base64": _WORKS, "document.url": _REFUSED,
    "document.file": _REFUSED,
}  # fmt: skip

#: Tools. Those of Anthropic's that the caller runs are offered as functions, with the arguments that callers know.
TOOLS: Mapping[str, Treatment] = {
    **dict.fromkeys((
        "custom", "bash_20241022", "bash_20250124", "computer_20241022", "computer_20250124", "computer_20251124",
        "memory_20250818", "text_editor_20241022", "text_editor_20250124", "text_editor_20250429",
        "text_editor_20250728",
    ), _WORKS),
    **dict.fromkeys((
        "advisor_20260301", "browser_toolset_20260801", "code_execution_20250522", "code_execution_20250825",
        "code_execution_20260120", "code_execution_20260521", "computer_toolset_20260801", "mcp_toolset",
        "tool_search_tool_bm25", "tool_search_tool_bm25_20251119", "tool_search_tool_regex",
        "tool_search_tool_regex_20251119", "web_fetch_20250910", "web_fetch_20260209", "web_fetch_20260309",
        "web_fetch_20260318", "web_search_20250305", "web_search_20260209", "web_search_20260318",
    ), _REFUSED),
}  # fmt: skip

#: Events of a stream.
EVENTS: Mapping[str, Treatment] = dict.fromkeys((
    "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
    "message_stop", "ping", "error",
), _WORKS)  # fmt: skip

#: Kinds of delta in `content_block_delta`: those that are sent work.
DELTAS: Mapping[str, Treatment] = {
    "text_delta": _WORKS, "input_json_delta": _WORKS, "thinking_delta": _WORKS, "signature_delta": _WORKS,
    "citations_delta": _IGNORED, "compaction_delta": _IGNORED,
}  # fmt: skip

#: Reasons of an answer's end: those that are told work.
STOP_REASONS: Mapping[str, Treatment] = {
    "end_turn": _WORKS, "max_tokens": _WORKS, "stop_sequence": _WORKS, "tool_use": _WORKS, "refusal": _WORKS,
    "model_context_window_exceeded": _WORKS, "pause_turn": _IGNORED, "compaction": _IGNORED,
}  # fmt: skip
