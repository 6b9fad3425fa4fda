"""Every bound of a plan, named, with its unit: its file, its tasks, their commands and what they list."""

#: 100,000 tasks of ten lines take some 40 MB.
PLAN_FILE_BYTES_MAX = 64 * 2**20
PLAN_TASKS_MAX = 100_000
PLAN_INPUTS_MAX = 1_000
#: A heading, and the lines of one value in back-ticks.
PLAN_TITLE_CHARS_MAX = 500
PLAN_VALUE_LINES_MAX = 1_000
#: Dependencies, files or variables that one task lists.
PLAN_LIST_LEN_MAX = 10_000
#: All dependencies of a plan together.
PLAN_EDGES_MAX = 1_000_000
#: Circles that are named; a plan with one mistake has one.
PLAN_CIRCLES_MAX = 10
#: Findings listed for a bad plan; the rest is counted. Looking for the nearest of 2,000 names takes 0.1 s.
PLAN_FINDINGS_MAX = 100
PLAN_HINTS_MAX = 20
#: Linux takes at most 128 KiB as one argument of a program, its last NUL included.
PLAN_COMMAND_BYTES_MAX = 96 * 2**10
#: How long bash is asked about the commands of a plan, and of one task that failed.
PLAN_SYNTAX_MS_MAX = 10_000
TASK_SYNTAX_MS_MAX = 2_000
PLAN_VALUE_BYTES_MAX = 128 * 2**10 - 1
#: All arguments of a program together; Linux gives 2 MiB to them and to the environment.
PLAN_ARGUMENTS_BYTES_MAX = 2**20
PLAN_PROMPT_BYTES_MAX = 2**20
#: How deep a command may nest quotes and substitutions.
PLAN_NESTING_MAX = 100
#: The items of one foreach, and the file they are read from.
PLAN_ITEMS_MAX = 1_000_000
PLAN_MANIFEST_BYTES_MAX = 512 * 2**20
#: What `plan check` reads of a manifest in the plan's folder, and the items whose fields it looks at.
PLAN_MANIFEST_CHECKED_BYTES_MAX = 16 * 2**20
PLAN_ITEMS_CHECKED_MAX = 10_000
PLAN_BATCH_SIZE_MAX = 10_000
#: Tokens of an answer that a plan may ask for.
PLAN_ANSWER_TOKENS_MAX = 1_000_000
PLAN_RETRIES_MAX = 100
PLAN_VRAM_MB_MAX = 2**20
#: A prompt, schema or script of the plan folder that is hashed.
PLAN_SCRIPT_BYTES_MAX = 256 * 2**20
#: A file that a word of a command names, and all of them together: larger ones are not compared by `plan resume`.
PLAN_NAMED_FILE_BYTES_MAX = 64 * 2**20
PLAN_NAMED_BYTES_MAX = 512 * 2**20
#: Words of one command that may be paths, how long one is, and files of a pattern or a folder.
PLAN_NAMED_PATHS_MAX = 2_000
PLAN_NAMED_CHARS_MAX = 1_000
PLAN_NAMED_FILES_MAX = 1_000
#: The execute_plan file and what --inputs names.
PLAN_INPUTS_BYTES_MAX = 2**20
#: What of a plan's goal is kept with a batch, for the planner who corrects it.
PLAN_GOAL_CHARS_MAX = 10_000
#: Failures that a summary shows in full.
SUMMARY_FAILURES_MAX = 50
SUMMARY_TEXT_CHARS_MAX = 500
#: Words of a command that starts other programs, each of which may be one. A command with more is not read.
STARTED_WORDS_MAX = 500
#: Here-documents of which the end is searched in advance. A command with more is read as if they had none.
HERE_SEARCHED_MAX = 100
#: Uses of a value in an interpreter's input that are noted: one is enough for a refusal.
FED_USES_MAX = 16
