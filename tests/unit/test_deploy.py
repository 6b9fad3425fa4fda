"""The files of deploy/: each names what is really there, and what it starts is a command that exists."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from unit.test_metrics import STATUS, telling
from watchbill.cli.app import build_app
from watchbill.config import parse
from watchbill.core.messages import AlertKind
from watchbill.metrics import DEVICE_GAUGES, STATES, Metrics
from watchbill.runtime.ticket import Outcome

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_compose_file_names_files_that_are_there_and_a_config_that_is_right() -> None:
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["watchbill"]
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    mounted = next(each for each in service["volumes"] if each.startswith("./"))
    text = (DEPLOY / mounted.split(":")[0]).read_text()
    catalog = parse(text, base=DEPLOY, environment={"WATCHBILL_KEY": "a-key-of-a-person-1"})
    assert (catalog.server.host, catalog.library.files) == ("0.0.0.0", True)
    assert "127.0.0.1:8470:8470" in service["ports"], "not open to the network by default"


def test_the_profile_to_observe_is_off_and_starts_what_is_there() -> None:
    """OPS: Prometheus and Grafana are optional, local only, and find the daemon, its key and the dashboard."""
    document = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    beside = {name: each for name, each in document["services"].items() if name != "watchbill"}
    assert set(beside) == {"prometheus", "grafana"}
    for service in beside.values():
        assert service["profiles"] == ["observe"] and all(
            port.startswith("127.0.0.1:") for port in service["ports"]
        )
        assert re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", service["image"]), (
            "a version, so that it is the same tomorrow"
        )
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            assert (DEPLOY / source).is_file() if source.startswith("./") else source in document["volumes"]
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "compose.yml").read_text())["scrape_configs"][0]
    host = scrape["static_configs"][0]["targets"][0].split(":")[0]
    text = (DEPLOY / "watchbill.toml").read_text()
    catalog = parse(text, base=DEPLOY, environment={"WATCHBILL_KEY": "a-key-of-a-person-1"})
    assert host in document["services"] and host in catalog.server.hosts, "else the daemon refuses the scrape"
    secret = scrape["authorization"]["credentials_file"].removeprefix("/run/secrets/")
    assert secret in document["secrets"] and secret in beside["prometheus"]["secrets"]
    source = yaml.safe_load((DEPLOY / "grafana" / "datasource.yaml").read_text())["datasources"][0]
    assert source["url"].split("//")[1].split(":")[0] in beside
    provider = yaml.safe_load((DEPLOY / "grafana" / "dashboards.yaml").read_text())["providers"][0]
    assert any(
        mount.split(":")[1].startswith(provider["options"]["path"]) for mount in beside["grafana"]["volumes"]
    )


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


# ------------------------------------------------------------------ the image and its compose file

#: What a service, and the file itself, may have by the Compose Specification; a wrong word stops `docker compose up`.
SERVICE_KEYS = {
    "build", "command", "deploy", "entrypoint", "environment", "healthcheck", "image", "init", "ports", "profiles",
    "restart", "secrets", "stop_grace_period", "user", "volumes",
}  # fmt: skip
FILE_KEYS = {"services", "secrets", "volumes"}


def dockerfile() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, with lines that go on joined."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_compose_file_is_one_by_its_specification() -> None:
    """Issue 19: keys, ports, mounts, words and durations have the forms that Compose reads."""
    document = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert set(document) <= FILE_KEYS
    for name, service in document["services"].items():
        assert set(service) <= SERVICE_KEYS, name
        assert ("build" in service) != ("image" in service)
        assert service["restart"] in {"no", "always", "on-failure", "unless-stopped"}
        assert re.fullmatch(r"\d+s", service.get("stop_grace_period", "10s"))
        assert all(re.fullmatch(r"[\d.]+:\d+:\d+", port) for port in service["ports"])
        for source, target, *mode in (mount.split(":") for mount in service["volumes"]):
            assert target.startswith("/") and mode in ([], ["ro"])
            assert source in document["volumes"] or (DEPLOY / source).is_file()
        assert all(isinstance(value, str) for value in service.get("environment", {}).values())
        assert set(service.get("secrets", ())) <= set(document["secrets"])
    named = re.findall(r"\$\{(\w+)(:\?[^}]+)?\}", (DEPLOY / "compose.yaml").read_text())
    assert {variable for variable, _ in named} == {"WATCHBILL_KEY", "HOME"}
    assert any(complaint for _, complaint in named), "without a key it says what to set, and does not start"


def test_the_compose_file_and_the_image_name_the_same_folders_ports_and_user() -> None:
    """Issue 19: the volume is the root of the image, and the image's own user may write there."""
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["watchbill"]
    steps = dockerfile()
    told = {word: rest for word, rest in steps if word in {"USER", "VOLUME", "EXPOSE", "STOPSIGNAL"}}
    environment = dict(each.split("=", 1) for each in dict(steps)["ENV"].split())
    assert told["VOLUME"] == environment["WATCHBILL_HOME"]
    assert f"data:{told['VOLUME']}" in service["volumes"]
    runs = [rest for word, rest in steps if word == "RUN"]
    made = f"useradd --create-home --uid 10001 {told['USER']} && install -d -o {told['USER']} -m 700 {told['VOLUME']}"
    assert made in runs[-1]
    assert service["ports"][0].endswith(f":{told['EXPOSE']}")
    venv = environment["PATH"].removesuffix("/bin:$PATH")
    assert ("COPY", f"--from=build {venv} {venv}") in steps and f"python3 -m venv {venv}" in runs[1]
    assert int(service["stop_grace_period"].removesuffix("s")) > 30, "the daemon drains for 30 s"
    assert told["STOPSIGNAL"] == "SIGTERM"
    config = next(mount.split(":")[1] for mount in service["volumes"] if mount.startswith("./"))
    assert f"--config {config}" in service["entrypoint"][-1]


def test_the_image_starts_commands_that_exist_and_builds_with_the_locked_builder() -> None:
    """Issue 19: health check, entry point and command by the real command line."""
    steps = dict(dockerfile())
    health = json.loads(steps["HEALTHCHECK"].partition(" CMD ")[2])
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["watchbill"]
    shell = re.split(r" && (?:exec )?", service["entrypoint"][-1])
    commands = [
        health,
        [*json.loads(steps["ENTRYPOINT"]), *json.loads(steps["CMD"])],
        *map(shlex.split, shell),
    ]
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())
    for program, *words in commands:
        assert program in project["project"]["scripts"]
        _command, bound, _ignored = build_app(words[0]).parse_args(
            words, print_error=False, exit_on_error=False
        )
        assert bound is not None
    assert steps["ARG"].startswith("BASE=")
    (built_with,) = project["build-system"]["requires"]
    assert any(built_with in rest for word, rest in dockerfile() if word == "RUN"), built_with


def test_the_build_gets_the_sources_and_not_what_lies_beside_them() -> None:
    """Issue 19: an environment of 600 MB and the history are not sent to the builder."""
    left_out = (DEPLOY.parent / ".dockerignore").read_text().split()
    assert {".git", ".venv", "dist"} <= set(left_out)
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    needed = {"src", "pyproject.toml", project["readme"], "LICENSE"}
    assert not needed & set(left_out)


# ------------------------------------------------------------------ Prometheus and Grafana

RULES = DEPLOY / "prometheus" / "watchbill.rules.yaml"
DASHBOARD = DEPLOY / "grafana" / "watchbill.json"


def known() -> set[str]:
    """The name of every series that /metrics has."""
    page = Metrics(telling({**STATUS, "devices": {"ram": dict.fromkeys(DEVICE_GAUGES, 1)}})).render().decode()
    names: set[str] = set()
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", page, re.MULTILINE):
        names |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    return names


def expressions() -> list[str]:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [rule["expr"] for rule in rules] + [
        target["expr"] for panel in panels for target in panel["targets"]
    ]


@pytest.mark.parametrize("expression", expressions())
def test_every_rule_and_panel_asks_for_figures_that_there_are(expression: str) -> None:
    """OPS: names, and the words of labels, as /metrics has them."""
    asked = set(re.findall(r"\b(?:watchbill|gen_ai)_\w+", expression))
    assert asked <= known() and (asked or "up{" in expression)
    for label, words in re.findall(r'\b(kind|state|outcome)!?=~?"([^"]+)"', expression):
        allowed = {"kind": {*AlertKind}, "state": {*STATES}, "outcome": {*Outcome, "failed"}}[label]
        assert set(words.split("|")) <= allowed, words


def test_every_rule_says_what_to_do_and_panels_do_not_overlap() -> None:
    for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]:
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "action"}, rule["alert"]
    cells: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        mine = {
            (place["x"] + column, place["y"] + row)
            for column in range(place["w"])
            for row in range(place["h"])
        }
        assert not mine & cells and place["x"] + place["w"] <= 24, panel["title"]
        cells |= mine


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    "words",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "config", "--syntax-only", "compose.yml"),
        ("test", "rules", "watchbill.rules.test.yaml"),
    ],
    ids=["loads", "loads in compose", "fires"],
)
def test_the_rules_load_and_fire_when_they_should(words: tuple[str, ...]) -> None:
    """Evaluated by Prometheus itself: what fires, what does not, and for which thing."""
    done = subprocess.run(
        ["promtool", *words], cwd=RULES.parent, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
