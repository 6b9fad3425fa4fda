"""Apps that look for Ollama where it usually is find Watchbill; real llama.cpp answers all three protocols."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import anthropic
import ollama
import openai
import pytest

from gguf_models import GgufFiles
from support.running import running
from watchbill.config import parse
from watchbill.units import Bytes

GREEDY = {"temperature": 0}
CONFIG = '[models.a]\nengine = "scripted"\nscript = { text = "hello " }\n'


@contextmanager
def up(folder: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    (folder / "watchbill.toml").write_text(CONFIG)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "WATCHBILL_HOME": str(folder / "root")}
    command = [sys.executable, "-m", "watchbill", "up", "--port", "0", *arguments]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as daemon:
        try:
            yield daemon
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.communicate(timeout=30)


def test_apps_that_look_for_ollama_find_watchbill(tmp_path: Path) -> None:
    """api.md: `up --ollama-port` also listens there."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with up(tmp_path, "--ollama-port", str(port)) as daemon:
            assert daemon.wait(30) == 2
            said = daemon.stderr.read() if daemon.stderr else ""
            assert f"127.0.0.1:{port}" in said and "--ollama-port" in said
    with up(tmp_path, "--ollama-port", str(port)) as daemon:
        assert daemon.stdout is not None and daemon.stdout.readline().startswith("ready http://127.0.0.1:")
        with ollama.Client(f"http://127.0.0.1:{port}") as client:
            assert client.chat("a", [{"role": "user", "content": "hi"}]).message.content.startswith("hello")


async def test_llamacpp_answers_in_three_protocols(tmp_path: Path, gguf_files: GgufFiles) -> None:
    """api.md: the real clients against the real engine; Anthropic's protocol with the engine's own counts."""
    source = gguf_files.chat("5MB")
    told = parse(
        f'[models.a]\nengine = "llamacpp"\nsource = "{source}"\nthreads = 1\ncontext = 512\n', base=tmp_path
    )
    catalog = replace(told, devices={"ram": replace(told.devices["ram"], reserve=Bytes(0))})
    asked = [{"role": "user", "content": "hi"}]
    async with running(tmp_path, catalog) as (serving, driver):
        async with ollama.AsyncClient(serving.url) as client:
            said = await client.chat("a", asked, options={"num_predict": 4, "num_ctx": 64, "seed": 1})
            assert said.done_reason == "length" and said.eval_count == 4
            assert 0 < said.eval_duration < said.total_duration and said.load_duration > 0
            parts = [
                part
                async for part in await client.generate("a", "x", stream=True, options={"num_predict": 3})
            ]
            assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
            assert (await client.show("a")).modelinfo["general.architecture"] == "llama"
            assert (await client.ps()).models[0].context_length == 512
        async with anthropic.AsyncAnthropic(base_url=serving.url, api_key="x", max_retries=0) as client:
            message = await client.messages.create(model="a", max_tokens=4, messages=asked)
            assert message.stop_reason == "max_tokens" and message.usage.output_tokens == 4
            async with client.messages.stream(model="a", max_tokens=4, messages=asked) as stream:
                assert [piece async for piece in stream.text_stream]
                assert (await stream.get_final_message()).stop_reason == "max_tokens"
            counted = await client.messages.count_tokens(model="a", messages=asked)
            assert counted.input_tokens > 0 and "watchbill" not in counted.model_dump()
            assert message.usage.input_tokens + message.usage.cache_read_input_tokens == counted.input_tokens
            plain = await client.messages.create(model="a", max_tokens=40, messages=asked, extra_body=GREEDY)
            text = plain.content[0].text
            async with client.messages.stream(
                model="a", max_tokens=40, messages=asked, stop_sequences=[text[9:12]], extra_body=GREEDY
            ) as stream:
                events = [told async for told in stream]
                stopped = await stream.get_final_message()
            assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", text[9:12])
            assert stopped.content[0].text == text.partition(text[9:12])[0]
            begun = events[0].message.usage
            assert begun.input_tokens + begun.cache_read_input_tokens == counted.input_tokens
            assert 0 < stopped.usage.output_tokens < plain.usage.output_tokens
            long = [{"role": "user", "content": "word " * 2000}]
            with pytest.raises(
                anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 512 maximum"
            ):
                await client.messages.create(model="a", max_tokens=4, messages=long)
        async with openai.AsyncOpenAI(base_url=f"{serving.url}/v1", api_key="x", max_retries=0) as client:
            whole = await client.chat.completions.create(model="a", messages=asked, max_tokens=4)
            assert whole.choices[0].finish_reason == "length"
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(model="a", messages=long)
            assert refused.value.code == "context_length_exceeded"
        assert driver.status()["models"]["a"]["loads"] == 1  # num_ctx loaded nothing anew
