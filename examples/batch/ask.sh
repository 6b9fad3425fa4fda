#!/bin/sh
# Has a file of questions answered in idle time, and prints one answer on each line.
# Needs a daemon with the model smollm2 (`make up`); WATCHBILL names the command where it is not on the PATH.
set -eu
cd "$(dirname "$0")"
watchbill=${WATCHBILL:-watchbill}
id=$($watchbill batch submit questions.jsonl --follow --json | sed -n 's/.*"id": *"\(batch_[0-9a-f]*\)".*/\1/p' | head -n 1)
$watchbill batch results "$id"
