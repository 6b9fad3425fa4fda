"""What becomes of each documented part of OpenAI's Responses API: it works, is ignored, or is refused. Data only.

The tables of docs/responses.md have the same rows; a test compares them, and asks a gateway whether they are true.
"""

from collections.abc import Mapping

from watchbill.gateway.dialects.treatment import Treatment

__all__ = ["EVENTS", "FIELDS", "INCLUDES", "ITEMS", "PARTS", "TOOLS"]

_WORKS, _IGNORED, _REFUSED = Treatment.WORKS, Treatment.IGNORED, Treatment.REFUSED

#: Fields of a request.
FIELDS: Mapping[str, Treatment] = {
    "background": _WORKS, "include": _WORKS, "input": _WORKS, "instructions": _WORKS, "max_output_tokens": _WORKS,
    "metadata": _WORKS, "model": _WORKS, "parallel_tool_calls": _WORKS, "previous_response_id": _WORKS,
    "reasoning": _WORKS, "store": _WORKS, "stream": _WORKS, "temperature": _WORKS, "text": _WORKS,
    "tool_choice": _WORKS, "tools": _WORKS, "top_logprobs": _WORKS, "top_p": _WORKS, "truncation": _WORKS,
    "access_programs": _IGNORED, "image": _IGNORED, "max_tool_calls": _IGNORED, "prompt_cache_key": _IGNORED,
    "prompt_cache_options": _IGNORED, "prompt_cache_retention": _IGNORED, "safety_identifier": _IGNORED,
    "service_tier": _IGNORED, "stream_options": _IGNORED, "user": _IGNORED,
    "context_management": _REFUSED, "conversation": _REFUSED, "moderation": _REFUSED, "prompt": _REFUSED,
}  # fmt: skip

#: Items of an input.
ITEMS: Mapping[str, Treatment] = {
    "message": _WORKS, "function_call": _WORKS, "function_call_output": _WORKS, "reasoning": _WORKS,
    "custom_tool_call": _WORKS, "custom_tool_call_output": _WORKS, "item_reference": _WORKS,
    **dict.fromkeys((
        "additional_tools", "apply_patch_call", "apply_patch_call_output", "code_interpreter_call", "compaction",
        "compaction_trigger", "computer_call", "computer_call_output", "configuration_update", "file_search_call",
        "image_generation_call", "local_shell_call", "local_shell_call_output", "mcp_approval_request",
        "mcp_approval_response", "mcp_call", "mcp_list_tools", "program", "program_output", "shell_call",
        "shell_call_output", "tool_search_call", "tool_search_output", "web_search_call",
    ), _REFUSED),
}  # fmt: skip

#: Parts of a message, and of what a tool returned.
PARTS: Mapping[str, Treatment] = {
    "input_text": _WORKS, "output_text": _WORKS, "refusal": _WORKS, "input_image": _WORKS, "input_audio": _WORKS,
    "input_file": _REFUSED,
}  # fmt: skip

#: Tools. One that is ignored is not offered to the model, and the answer's `tools` do not list it.
TOOLS: Mapping[str, Treatment] = {
    "function": _WORKS, "custom": _WORKS,
    **dict.fromkeys((
        "apply_patch", "code_interpreter", "computer", "computer_use_preview", "file_search", "image_generation",
        "local_shell", "mcp", "namespace", "programmatic_tool_calling", "shell", "tool_search", "web_search",
        "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11",
    ), _IGNORED),
}  # fmt: skip

#: Values of `include`.
INCLUDES: Mapping[str, Treatment] = {
    "message.output_text.logprobs": _WORKS, "reasoning.encrypted_content": _WORKS,
    "message.input_image.image_url": _WORKS,
    **dict.fromkeys((
        "code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results",
        "web_search_call.action.sources", "web_search_call.results",
    ), _IGNORED),
}  # fmt: skip

#: Events of a stream: those that are sent work, the others belong to what does not exist here.
EVENTS: Mapping[str, Treatment] = {
    **dict.fromkeys((
        "response.created", "response.queued", "response.in_progress", "response.completed", "response.incomplete",
        "response.failed", "response.output_item.added", "response.output_item.done", "response.content_part.added",
        "response.content_part.done", "response.output_text.delta", "response.output_text.done",
        "response.reasoning_text.delta", "response.reasoning_text.done", "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done", "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done", "response.function_call_arguments.delta",
        "response.function_call_arguments.done", "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
    ), _WORKS),
    **dict.fromkeys((
        "error", "response.audio.delta", "response.audio.done", "response.audio.transcript.delta",
        "response.audio.transcript.done", "response.code_interpreter_call.completed",
        "response.code_interpreter_call.in_progress", "response.code_interpreter_call.interpreting",
        "response.code_interpreter_call_code.delta", "response.code_interpreter_call_code.done",
        "response.compaction.compacting", "response.file_search_call.completed",
        "response.file_search_call.in_progress", "response.file_search_call.searching",
        "response.image_generation_call.completed", "response.image_generation_call.generating",
        "response.image_generation_call.in_progress", "response.image_generation_call.partial_image",
        "response.mcp_call.completed", "response.mcp_call.failed", "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta", "response.mcp_call_arguments.done", "response.mcp_list_tools.completed",
        "response.mcp_list_tools.failed", "response.mcp_list_tools.in_progress",
        "response.output_text.annotation.added", "response.refusal.delta", "response.refusal.done",
        "response.shell_call_command.added", "response.shell_call_command.delta",
        "response.shell_call_command.done", "response.shell_call_output_content.delta",
        "response.shell_call_output_content.done", "response.web_search_call.completed",
        "response.web_search_call.in_progress", "response.web_search_call.searching",
    ), _IGNORED),
}  # fmt: skip
