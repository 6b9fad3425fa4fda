"""The files of deploy/: each names what is really there, and what it starts is a command that exists."""

import configparser
import re
from pathlib import Path

import yaml

from watchbill.config import parse

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_compose_file_names_files_that_are_there_and_a_config_that_is_right() -> None:
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["watchbill"]
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    mounted = next(each for each in service["volumes"] if each.startswith("./"))
    text = (DEPLOY / mounted.split(":")[0]).read_text()
    catalog = parse(text, base=DEPLOY, environment={"WATCHBILL_KEY": "a-key-of-a-person-1"})
    assert (catalog.server.host, catalog.library.files) == ("0.0.0.0", True)
    assert "127.0.0.1:8470:8470" in service["ports"], "not open to the network by default"


def test_the_image_has_a_base_by_argument_and_runs_as_nobody_special() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    assert any(line.startswith("ARG BASE=debian:") for line in lines)
    assert [line for line in lines if line.startswith("FROM ")] == ["FROM ${BASE} AS build", "FROM ${BASE}"]
    assert "USER watchbill" in lines and 'CMD ["up"]' in lines


def test_the_units_tell_systemd_when_they_are_ready_and_how_to_reload() -> None:
    for path in sorted((DEPLOY / "systemd").glob("*.service")):
        unit = configparser.RawConfigParser(strict=False)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read_string(path.read_text())
        service = unit["Service"]
        assert service["Type"] == "notify" and "HUP" in service["ExecReload"], path.name
        assert re.search(r"/watchbill up$", service["ExecStart"]), path.name
        assert unit["Install"]["WantedBy"] in {"multi-user.target", "default.target"}
