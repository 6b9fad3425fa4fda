"""What all tests share: the long forms behind `--torture`, and sums at the end: seconds per folder, steps simulated."""

import gc
import signal
from collections import defaultdict
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--torture", action="store_true", help="also run the long forms of the fault tests")


def pytest_configure(config: pytest.Config) -> None:
    # On a busy machine it is the machine that is slow, not the example.
    settings.register_profile("everywhere", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("everywhere")
    config.addinivalue_line("markers", "torture: a long form, run by `make torture` only")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # So a shell starts its background jobs, and everything that the tests start would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--torture"):
        return
    long_form = pytest.mark.skip(reason="a long form; run it with: make torture")
    for item in items:
        if item.get_closest_marker("torture"):
            item.add_marker(long_form)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Ten thousand tests and all that they import stay to the end: the collector need not look at them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seconds: dict[str, float] = defaultdict(float)
    tests: dict[str, int] = defaultdict(int)
    simulated: dict[str, int] = defaultdict(int)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                folder = "/".join(report.nodeid.split("/")[:2])
                seconds[folder] += report.duration
                tests[folder] += report.when == "call"
                for name, value in report.user_properties if report.when == "call" else ():
                    if name in ("steps", "worlds") and isinstance(value, int):
                        simulated[name] += value
    if not seconds:
        return
    terminalreporter.section("seconds per folder")
    for folder, spent in sorted(seconds.items()):
        terminalreporter.write_line(f"{spent:8.1f} s  {tests[folder]:5} tests  {folder}")
    if simulated:
        terminalreporter.write_line(
            f"simulated: {simulated['steps']:,} steps in {simulated['worlds']:,} random worlds"
        )
