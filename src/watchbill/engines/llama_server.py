"""llama.cpp's own HTTP server as a program, for machines without a `llama-server`: the wheel `xllamacpp`
has no command line, this is one.

Takes llama-server's own flags, those in FLAGS and SWITCHES, and refuses any other with exit 2: a parameter
that is silently ignored is worse than one that fails. Exits with 1 when the load fails, and with 143 on
SIGTERM, so that a crash never looks like a stop. Imports nothing of Watchbill: `python -m
watchbill.engines.llama_server --help`.
"""

import importlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

#: llama.cpp writes its log in a thread of its own, and an exit would cut off the line that says why a load failed.
LOG_S = 0.5
EXIT_LOAD_FAILED = 1
EXIT_USAGE = 2

#: xllamacpp is a compiled module without type information: its parameters are `Any` here and nowhere else.
Params = Any
Setter = Callable[[Params, str], None]


def embedded() -> Any:
    """The compiled module. Leaves the program with exit 2 when it is not installed."""
    try:
        return importlib.import_module("xllamacpp")
    except ImportError as error:
        install = f"{shlex.quote(sys.executable)} -m pip install xllamacpp"
        refuse(f"the embedded llama.cpp is not installed ({error}); {install}")


def plain(name: str, read: Callable[[str], object] = str) -> Setter:
    """A flag that sets one parameter."""
    return lambda params, text: setattr(params, name, read(text))


def choice(name: str, enum: str, prefix: str, **spellings: str) -> Setter:
    """A flag whose values are the members of one of xllamacpp's enums, as `mean` for LLAMA_POOLING_TYPE_MEAN;
    `spellings` are llama-server's own words for some of them."""

    def set_member(params: Params, text: str) -> None:
        members = getattr(embedded(), enum)
        member = prefix + spellings.get(text, text).upper()
        if not hasattr(members, member):
            raise ValueError(f"{text!r} is not one of its values")
        setattr(params, name, getattr(members, member))

    return set_member


def set_threads(params: Params, text: str) -> None:
    """Threads for both generation and prompts, as llama-server does it."""
    params.cpuparams.n_threads = int(text)
    params.cpuparams_batch.n_threads = int(text)


def set_model(params: Params, text: str) -> None:
    """The model file."""
    params.model.path = text


def set_projector(params: Params, text: str) -> None:
    """The file that lets a model see or hear."""
    params.mmproj.path = text


FLAGS: Mapping[str, Setter] = {
    "--model": set_model,
    "--mmproj": set_projector,
    "--host": lambda params, text: setattr(params, "hostnames", [text]),
    "--port": plain("port", int),
    "--alias": lambda params, text: setattr(params, "model_alias", {text}),
    "--ctx-size": plain("n_ctx", int),
    "--parallel": plain("n_parallel", int),
    "--threads": set_threads,
    "--threads-http": plain("n_threads_http", int),
    "--cache-ram": plain("cache_ram_mib", int),
    "--load-mode": choice("load_mode", "llama_load_mode", "LLAMA_LOAD_MODE_", dio="direct_io"),
    "--pooling": choice("pooling_type", "llama_pooling_type", "LLAMA_POOLING_TYPE_"),
    "--flash-attn": choice(
        "flash_attn_type", "llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_", on="enabled", off="disabled"
    ),
    "--cache-type-k": choice("cache_type_k", "ggml_type", "GGML_TYPE_"),
    "--cache-type-v": choice("cache_type_v", "ggml_type", "GGML_TYPE_"),
    "--split-mode": choice("split_mode", "llama_split_mode", "LLAMA_SPLIT_MODE_"),
    "--fit": plain("fit_params", lambda text: {"on": True, "off": False}[text]),
    "--n-gpu-layers": plain("n_gpu_layers", int),
    "--main-gpu": plain("main_gpu", int),
    "--batch-size": plain("n_batch", int),
    "--ubatch-size": plain("n_ubatch", int),
    "--chat-template": plain("chat_template"),
    "--api-key": lambda params, text: setattr(params, "api_keys", text.split(",")),
    "--slot-save-path": plain("slot_save_path"),
    "--sleep-idle-seconds": plain("sleep_idle_seconds", int),
    "--rope-freq-base": plain("rope_freq_base", float),
    "--rope-freq-scale": plain("rope_freq_scale", float),
    "--verbosity": plain("verbosity", int),
}

SWITCHES: Mapping[str, tuple[str, bool]] = {
    "--embedding": ("embedding", True),
    "--jinja": ("use_jinja", True),
    "--no-jinja": ("use_jinja", False),
    "--metrics": ("endpoint_metrics", True),
    "--no-slots": ("endpoint_slots", False),
    "--no-ui": ("ui", False),
    "--no-warmup": ("warmup", False),
    "--no-kv-offload": ("no_kv_offload", True),
    "--kv-unified": ("kv_unified", True),
    "--swa-full": ("swa_full", True),
    "--context-shift": ("ctx_shift", True),
}

SHORT = {
    "-m": "--model", "-a": "--alias", "-c": "--ctx-size", "-np": "--parallel", "-t": "--threads",
    "-ngl": "--n-gpu-layers", "--gpu-layers": "--n-gpu-layers", "-b": "--batch-size", "-ub": "--ubatch-size",
    "-fa": "--flash-attn", "-ctk": "--cache-type-k", "-ctv": "--cache-type-v", "-sm": "--split-mode",
    "-mg": "--main-gpu", "-mm": "--mmproj", "-cram": "--cache-ram", "--embeddings": "--embedding",
}  # fmt: skip


def known_flags() -> list[str]:
    """Every flag this server takes."""
    return [*FLAGS, *SWITCHES, *SHORT]


def set_all(params: Params, words: list[str]) -> None:
    """Puts a command line into the parameters. Leaves the program with exit 2 at the first word it cannot use."""
    row = iter(words)
    for word in row:
        flag, equals, text = word.partition("=")
        flag = SHORT.get(flag, flag)
        if flag in SWITCHES and not equals:
            setattr(params, *SWITCHES[flag])
        elif flag in FLAGS:
            value = text if equals else next(row, None)
            if value is None:
                refuse(f"{flag} needs a value")
            try:
                FLAGS[flag](params, value)
            except (ValueError, TypeError, OverflowError, KeyError) as error:
                refuse(f"{flag} {value}: {error}")
        else:
            refuse(f"unknown parameter {word}; known are {' '.join([*FLAGS, *SWITCHES])}")


def list_devices() -> None:
    """What it computes on besides the processor, as llama-server lists it."""
    print("Available devices:")
    for device in embedded().get_device_info():
        if "CPU" not in str(device["type"]):
            total, free = (int(device[key]) // 2**20 for key in ("memory_total", "memory_free"))
            print(f"  {device['name']}: {device['description']} ({total} MiB, {free} MiB free)")


def refuse(why: str) -> NoReturn:
    """Wrong use."""
    print(f"llama_server: {why}", file=sys.stderr, flush=True)
    sys.exit(EXIT_USAGE)


def on_signal(number: int, _: object) -> NoReturn:
    """Ends the process at once, as the shell would report it: 143 for TERM."""
    os._exit(128 + number)


def wait_for_signal() -> NoReturn:
    """Never returns. The kernel may hand a signal to one of the C++ threads, which would not wake this one
    from `pause`: a process that was frozen and thawed ignored its TERM that way. A pipe wakes it."""
    heard, said = os.pipe()
    os.set_blocking(said, False)
    signal.set_wakeup_fd(said)
    while True:
        os.read(heard, 1)  # Python calls the handler when this returns


def serve(params: Params) -> NoReturn:
    """Loads the model and serves until a signal comes."""
    began = time.monotonic()
    try:
        server = embedded().Server(params)  # returns when the model is loaded; the port is open before that
    except (RuntimeError, ValueError, OSError) as error:
        time.sleep(LOG_S)
        print(f"llama_server: load failed: {error}", file=sys.stderr, flush=True)
        os._exit(EXIT_LOAD_FAILED)  # the C++ threads may not let an ordinary exit through
    # llama.cpp installs handlers of its own inside Server(): ours must come after it.
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    loaded_s = time.monotonic() - began
    print(
        f"llama_server: ready {server.listening_address} after {loaded_s:.2f} s", file=sys.stderr, flush=True
    )
    wait_for_signal()


def main(words: list[str]) -> None:
    """llama_server.py --model FILE --port PORT [FLAG VALUE ...]"""
    if "--help" in words or "-h" in words:
        print(f"usage: llama_server --model FILE --port PORT [options]\n{' '.join([*FLAGS, *SWITCHES])}")
        return
    if "--list-devices" in words:
        list_devices()
        return
    params = embedded().CommonParams()
    params.cors_origins = ""  # web pages have no business with an engine: they come through the gateway
    if keys := os.environ.get("LLAMA_API_KEY"):  # as llama-server does
        params.api_keys = keys.split(",")
    set_all(params, words)
    serve(params)


if __name__ == "__main__":
    main(sys.argv[1:])
