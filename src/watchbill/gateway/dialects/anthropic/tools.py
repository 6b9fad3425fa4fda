"""Tools in Anthropic's dialect, as the functions of a chat. Does no I/O.

A tool of Anthropic's own that the caller runs (bash, text_editor, computer, memory) has no schema in the request:
Anthropic's models know it. It is offered as a function with the arguments that its callers know. What runs at
Anthropic, and toolsets, whose calls have a form of their own, are refused with the reason.
"""

from collections.abc import Callable, Mapping
from typing import cast

from watchbill.errors import RequestError
from watchbill.gateway.body import encode
from watchbill.gateway.dialects.anthropic.treatment import TOOLS
from watchbill.gateway.typed import is_word
from watchbill.quoting import quoted

__all__ = ["offered"]

Fields = dict[str, object]

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def offered(tools: object, choice: object) -> Fields:
    """The fields of a chat that offer these tools. Raises RequestError for what cannot be offered or chosen."""
    if tools is None and choice is None:
        return {}
    given: object = tools or []
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in cast("list[object]", given)):
        raise RequestError("tools must be a list of objects")
    functions = [_function(tool) for tool in cast("list[Fields]", given)]
    names = [function["name"] for function in functions]
    if len(set(names)) != len(names):
        raise RequestError("two tools have the same name")
    asked: Fields = {}
    if functions:
        asked["tools"] = [{"type": "function", "function": function} for function in functions]
        asked["parallel_tool_calls"] = True
    return asked | _choice(choice, names)


def _function(tool: Fields) -> Fields:
    kind = tool.get("type") or "custom"
    if kind == "custom":
        return _custom(tool)
    make = _KNOWN.get(str(kind))
    name = tool.get("name")
    if make is None:
        why = "it runs at Anthropic" if is_word(kind, TOOLS) else "its arguments are not known here"
        if str(kind).startswith(("browser_toolset_", "computer_toolset_")):
            why = "toolsets are known to Anthropic's models only; offer its single tools"
        raise RequestError(f"a tool of type {quoted(kind)} cannot be used: {why}")
    if not isinstance(name, str) or not name:
        raise RequestError(f"a tool of type {kind} must have its name")
    description, schema = make(tool)
    return {"name": name, "description": description, "parameters": schema}


def _custom(tool: Fields) -> Fields:
    name, schema = tool.get("name"), tool.get("input_schema")
    if not isinstance(name, str) or not name:
        raise RequestError("a tool must have a name")
    if not isinstance(schema, dict | None):
        raise RequestError(f"the input_schema of tool {quoted(name)} must be an object")
    callers = tool.get("allowed_callers")
    if isinstance(callers, list) and "direct" not in cast("list[object]", callers):
        raise RequestError(
            f"tool {quoted(name)} cannot be used: it allows only calls by code that runs at Anthropic"
        )
    function: Fields = {"name": name, "parameters": schema or {"type": "object"}}
    description, examples = tool.get("description"), tool.get("input_examples")
    if isinstance(description, str) and description:
        function["description"] = description
    if isinstance(examples, list) and examples:
        told = "\n".join(encode(cast("Fields", each)).decode() for each in cast("list[object]", examples))
        function["description"] = (
            f"{function.get('description', '')}\n\nExamples of its input:\n{told}".strip()
        )
    if isinstance(tool.get("strict"), bool):
        function["strict"] = tool["strict"]
    return function


def _choice(choice: object, names: list[object]) -> Fields:
    if choice is None:
        return {}
    if not isinstance(choice, dict):
        raise RequestError("tool_choice must be an object")
    fields = cast("Fields", choice)
    kind = fields.get("type")
    asked: Fields = {}
    if kind == "tool":
        if not is_word(fields.get("name"), names):
            raise RequestError(
                f"tool_choice names {quoted(fields.get('name'))}, which is not among the tools"
            )
        asked["tool_choice"] = {"type": "function", "function": {"name": fields["name"]}}
    elif is_word(kind, _CHOICES):
        if kind == "any" and not names:
            raise RequestError("tool_choice is any, and there are no tools")
        if names:
            asked["tool_choice"] = _CHOICES[kind]
    else:
        raise RequestError("tool_choice must be auto, any, tool or none")
    if fields.get("disable_parallel_tool_use") is True and names:
        asked["parallel_tool_calls"] = False
    return asked


# ------------------------------------------------------------------ tools of Anthropic's that callers run

_TEXT: Fields = {"type": "string"}
_NUMBER: Fields = {"type": "integer"}
_POINT: Fields = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}

Known = tuple[str, Fields]


def _schema(properties: Fields, *required: str) -> Fields:
    return {"type": "object", "properties": properties, "required": list(required)}


def _one_of(*values: str) -> Fields:
    return {"type": "string", "enum": list(values)}


def _bash(_tool: Fields) -> Known:
    what = "Runs a command in a bash session that is kept between calls. `restart` begins a new session."
    return what, _schema({"command": _TEXT, "restart": {"type": "boolean"}})


def _editor(*commands: str, inserted: str) -> Callable[[Fields], Known]:
    properties: Fields = {
        "command": _one_of(*commands), "path": {**_TEXT, "description": "An absolute path."},
        "file_text": {**_TEXT, "description": "create: the file's whole text."},
        "old_str": {**_TEXT, "description": "str_replace: a text that the file has exactly once."},
        "new_str": {**_TEXT, "description": "str_replace: the text in its place."},
        "insert_line": {**_NUMBER, "description": "insert: the line after which the text goes; 0 is the beginning."},
        inserted: {**_TEXT, "description": "insert: the text."},
        "view_range": {**_POINT, "description": "view: the first and the last line; -1 is the file's end."},
    }  # fmt: skip
    if inserted == "new_str":
        properties[inserted] = {
            **_TEXT,
            "description": "str_replace: the text in its place; insert: the text.",
        }

    def make(tool: Fields) -> Known:
        what = "Shows, creates and edits text files."
        if isinstance(most := tool.get("max_characters"), int):
            what += f" A view shows at most {most} characters."
        return what, _schema(properties, "command", "path")

    return make


_EARLY_ACTIONS = (
    "key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click", "double_click",
    "screenshot", "cursor_position",
)  # fmt: skip
_LATER_ACTIONS = (
    "left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "triple_click",
)  # fmt: skip


def _computer(*actions: str) -> Callable[[Fields], Known]:
    def make(tool: Fields) -> Known:
        able = (*actions, "zoom") if tool.get("enable_zoom") is True else actions
        properties: Fields = {
            "action": _one_of(*able),
            "coordinate": {**_POINT, "description": "x and y in pixels from the upper left corner."},
            "text": {**_TEXT, "description": "type: the text. key, hold_key: the keys, such as ctrl+s."},
        }
        if "left_mouse_down" in actions:
            properties |= {
                "start_coordinate": {**_POINT, "description": "left_click_drag: where it begins."},
                "scroll_direction": _one_of("up", "down", "left", "right"),
                "scroll_amount": _NUMBER,
                "duration": {"type": "number", "description": "hold_key, wait: seconds."},
            }
        if "zoom" in able:
            corners: Fields = {**_POINT, "minItems": 4, "maxItems": 4}
            properties["region"] = {**corners, "description": "zoom: x and y of two corners."}
        width, height = tool.get("display_width_px"), tool.get("display_height_px")
        what = "Uses a computer by its mouse and keyboard, and shows its screen (screenshot)."
        if isinstance(width, int) and isinstance(height, int):
            what += f" The screen has {width} x {height} pixels."
        return what, _schema(properties, "action")

    return make


def _memory(_tool: Fields) -> Known:
    commands = _one_of("view", "create", "str_replace", "insert", "delete", "rename")
    properties: Fields = {
        "command": commands, "path": {**_TEXT, "description": "A path under /memories; not for rename."},
        "file_text": {**_TEXT, "description": "create: the file's whole text."},
        "old_str": {**_TEXT, "description": "str_replace: a text that the file has exactly once."},
        "new_str": {**_TEXT, "description": "str_replace: the text in its place."},
        "insert_line": {**_NUMBER, "description": "insert: the line after which the text goes; 0 is the beginning."},
        "insert_text": {**_TEXT, "description": "insert: the text."},
        "old_path": {**_TEXT, "description": "rename: the present path."},
        "new_path": {**_TEXT, "description": "rename: the new path."},
        "view_range": {**_POINT, "description": "view: the first and the last line."},
    }  # fmt: skip
    return "Keeps notes in files under /memories that later conversations find again.", _schema(
        properties, "command"
    )


_WITH_UNDO = _editor("view", "create", "str_replace", "insert", "undo_edit", inserted="new_str")
_WITHOUT_UNDO = _editor("view", "create", "str_replace", "insert", inserted="insert_text")

_KNOWN: Mapping[str, Callable[[Fields], Known]] = {
    "bash_20241022": _bash,
    "bash_20250124": _bash,
    "computer_20241022": _computer(*_EARLY_ACTIONS),
    "computer_20250124": _computer(*_EARLY_ACTIONS, *_LATER_ACTIONS),
    "computer_20251124": _computer(*_EARLY_ACTIONS, *_LATER_ACTIONS),
    "memory_20250818": _memory,
    "text_editor_20241022": _WITH_UNDO,
    "text_editor_20250124": _WITH_UNDO,
    "text_editor_20250429": _WITHOUT_UNDO,
    "text_editor_20250728": _WITHOUT_UNDO,
}
