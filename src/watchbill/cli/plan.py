"""`plan`: checks, draws, submits and follows plans. Needs no daemon and no compiled package.

Declares the options; what the commands do is in `plan_checking`, `plan_submitting`, `plan_simulating`, `plan_batches`
and `plan_approving`, which import the standard library alone. `plan_quick` calls the same functions without the
framework.
"""

from typing import Annotated

from cyclopts import App, Parameter

from watchbill.cli import plan_approving, plan_batches, plan_checking, plan_simulating, plan_submitting
from watchbill.cli.options import QUIET, FleetRoot, follow_option
from watchbill.fleet.state.approving import Verdict

__all__ = ["app"]

app = App(name="plan", help="Check, draw, submit and follow plans.")

_Plan = Annotated[str, Parameter(help="A folder with a plan.md, the file itself, or a name in ROOT/plans.")]
_Json = Annotated[bool, Parameter(negative="", show_default=False, help="Print JSON.")]
_Quiet = Annotated[bool, QUIET]
_Batch = Annotated[str, Parameter(help="The id of a batch, or the beginning of one.")]
_InBatch = Annotated[
    str | None,
    Parameter(name="--batch", show_default=False, help="The batch. Default: the newest that has this task."),
]
_Set = Annotated[
    list[str] | None,
    Parameter(
        name="--set",
        negative="",
        show_default=False,
        help="An input, as NAME=VALUE; may be given more than once.",
    ),
]


@app.command
def check(
    plan: _Plan = ".",
    /,
    *,
    pairs: _Set = None,
    json: _Json = False,
    root: FleetRoot = None,
    quiet: _Quiet = False,
) -> int:
    """Report what is wrong with a plan, line by line, and what to write instead.

    Looks at keys and values, dependencies, placeholders, commands and the scripts they name. Exit code 2 when the plan
    cannot be run. With --set it looks at the plan with these inputs, as plan submit does.

    Example: watchbill plan check plans/video
    """
    return plan_checking.check_plan(plan, pairs or (), json=json, root=root, quiet=quiet)


@app.command
def graph(plan: _Plan = ".", /, *, root: FleetRoot = None, quiet: _Quiet = False) -> int:
    """Print the tasks and what they wait for as a Mermaid flowchart.

    Markdown viewers draw it from a fenced code block with the language mermaid.

    Example: watchbill plan graph plans/video
    """
    return plan_checking.draw_plan(plan, root=root, quiet=quiet)


@app.command
def submit(
    plan: _Plan,
    /,
    *,
    pairs: _Set = None,
    inputs: Annotated[
        str | None, Parameter(show_default=False, help="Inputs as a JSON object, or @FILE with one.")
    ] = None,
    priority: Annotated[
        str | None,
        Parameter(
            show_default=False,
            help="1 to 5, or urgent, high, normal, low. Default: the input PRIORITY, else normal.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        Parameter(negative="", show_default=False, help="Show every command that would run; submit nothing."),
    ] = False,
    json: _Json = False,
    root: FleetRoot = None,
    quiet: _Quiet = False,
) -> int:
    """Check a plan and hand it to the coordinator; print the id of the batch.

    The plan has to be in ROOT/plans. A plan that cannot be run is not submitted: exit code 2.

    Example: watchbill plan submit video --set VIDEO_DIR=/data/videos
    """
    submission = plan_submitting.Submission(plan, pairs or (), inputs, priority)
    return plan_submitting.submit_plan(submission, dry_run=dry_run, json=json, root=root, quiet=quiet)


@app.command
def simulate(
    plan: _Plan,
    /,
    *,
    agents: Annotated[
        str | None,
        Parameter(
            show_default=False,
            help="The agents to play with, as gpu-1,gpu-2: names of agents that have joined, 3xgpu-1 for three like "
            "gpu-1, cpu:4 for one of 4 slots and card:6144 for one with a card of that many MB that are made up. "
            "Default: the agents that live.",
        ),
    ] = None,
    items: Annotated[
        list[str] | None,
        Parameter(
            negative="",
            show_default=False,
            help="How many items a foreach task has, as TASK=NUMBER; may be given more than once. Default: as many as "
            "its manifest or the last batch has.",
        ),
    ] = None,
    pairs: _Set = None,
    json: _Json = False,
    root: FleetRoot = None,
    quiet: _Quiet = False,
) -> int:
    """Show how long a plan would take on these agents, and what one more of them would buy.

    Plays the plan in virtual time with the times that its tasks took in earlier batches; a time that is a guess says
    so. Nothing is submitted. Not counted are failures, chat on the same cards, and what commands cost to start.

    Example: watchbill plan simulate video --agents 2xgpu-1 --items transcribe=200
    """
    simulation = plan_simulating.Simulation(plan, agents, items or (), pairs or ())
    return plan_simulating.simulate_plan(simulation, json=json, root=root, quiet=quiet)


@app.command
def status(
    batch: Annotated[str | None, Parameter(help="The id of a batch, or its beginning. Default: all.")] = None,
    /,
    *,
    follow: Annotated[
        bool,
        follow_option(
            "Print a line whenever something changes, until the batch has ended; exit code 1 unless complete."
        ),
    ] = False,
    json: _Json = False,
    root: FleetRoot = None,
    quiet: _Quiet = False,
) -> int:
    """Show coordinator, agents and batches, or one batch: its tasks by state, per agent, rate and time left.

    Example: watchbill plan status --follow
    """
    return plan_batches.show_status(batch, follows=follow, json=json, root=root, quiet=quiet)


@app.command
def wait(
    batch: _Batch,
    /,
    *,
    timeout: Annotated[
        float | None, Parameter(show_default=False, help="Seconds. Default: as long as it takes.")
    ] = None,
    root: FleetRoot = None,
    quiet: _Quiet = False,
) -> int:
    """Wait until a batch has ended.

    Exit code 0 when it is complete, 1 when it ended otherwise, 124 when it has not ended in time.

    Example: watchbill plan wait 20260101-120000-a1b2c3 --timeout 3600
    """
    return plan_batches.wait_for_batch(batch, timeout=timeout, root=root, quiet=quiet)


@app.command(name="list")
def list_(*, json: _Json = False, root: FleetRoot = None, quiet: _Quiet = False) -> int:
    """List the plans of the shared folder and all their batches."""
    return plan_batches.list_batches(json=json, root=root, quiet=quiet)


@app.command
def logs(
    task: Annotated[str, Parameter(help="The name of a task.")],
    /,
    *,
    batch: _InBatch = None,
    attempt: Annotated[
        int | None, Parameter(show_default=False, help="Which attempt. Default: the last.")
    ] = None,
    follow: Annotated[
        bool, follow_option("Print what it writes, about every 5 s, until it has ended.")
    ] = False,
    json: _Json = False,
    root: FleetRoot = None,
    quiet: _Quiet = False,
) -> int:
    """Print what a task wrote, and its result; of a task that runs, the end of what it has written so far.

    Example: watchbill plan logs transcribe_v1
    """
    return plan_batches.show_logs(
        task, batch=batch, attempt=attempt, root=root, quiet=quiet, follows=follow, json=json
    )


@app.command
def cancel(batch: _Batch, /, *, root: FleetRoot = None, quiet: _Quiet = False) -> int:
    """Cancel a batch: nothing more of it starts, and what runs is stopped.

    It can be resumed later.
    """
    return plan_batches.cancel_batch(batch, root=root, quiet=quiet)


@app.command
def retry(
    tasks: Annotated[
        list[str], Parameter(help="Names of tasks, or of a foreach task for those that did not complete.")
    ],
    /,
    *,
    batch: _InBatch = None,
    root: FleetRoot = None,
    quiet: _Quiet = False,
) -> int:
    """Run tasks again, and everything that depends on them.

    The plan is not read again; for a corrected plan use: watchbill plan resume

    Example: watchbill plan retry transcribe_v1
    """
    return plan_batches.retry_tasks(tasks, batch=batch, root=root, quiet=quiet)


@app.command
def resume(
    batch: _Batch,
    /,
    *,
    explain: Annotated[
        bool,
        Parameter(
            negative="", show_default=False, help="Say for each task why it would run again; change nothing."
        ),
    ] = False,
    pairs: _Set = None,
    json: _Json = False,
    root: FleetRoot = None,
    quiet: _Quiet = False,
) -> int:
    """Go on with a batch that has ended: read its plan again, keep what is complete and unchanged, run the rest.

    A complete task is kept when its command, the scripts it names, the inputs it uses and its items are the same.

    Example: watchbill plan resume 20260101-120000-a1b2c3 --explain
    """
    return plan_batches.resume_batch(
        batch, explain=explain, pairs=pairs or (), json=json, root=root, quiet=quiet
    )


_Waiting = Annotated[
    list[str] | None, Parameter(help="Names of tasks that wait, or of a foreach task for all of its.")
]


@app.command
def approve(
    tasks: _Waiting = None,
    /,
    *,
    batch: _InBatch = None,
    json: _Json = False,
    root: FleetRoot = None,
    quiet: _Quiet = False,
) -> int:
    """List the tasks that wait for a person, or let some of them run.

    A task waits when a rule of permissions.toml asks about its command, or when it was found stuck. The approval holds
    for exactly this command of this batch, and its journal says who gave it.

    Example: watchbill plan approve install --batch 20260101-120000-a1b2c3
    """
    if not tasks:
        return plan_approving.show_questions(batch=batch, json=json, root=root, quiet=quiet)
    return plan_approving.answer_questions(
        tasks, Verdict.APPROVE, batch=batch, json=json, root=root, quiet=quiet
    )


@app.command
def deny(
    tasks: Annotated[
        list[str], Parameter(help="Names of tasks that wait, or of a foreach task for all of its.")
    ],
    /,
    *,
    reason: Annotated[
        str, Parameter(show_default=False, help="Why not: the task's error, for the planner to read.")
    ] = "",
    batch: _InBatch = None,
    json: _Json = False,
    root: FleetRoot = None,
    quiet: _Quiet = False,
) -> int:
    """Fail tasks that wait for a person; those that depend on them are skipped.

    Example: watchbill plan deny install --reason "use the packages of the image"
    """
    return plan_approving.answer_questions(
        tasks, Verdict.DENY, reason=reason, batch=batch, json=json, root=root, quiet=quiet
    )
