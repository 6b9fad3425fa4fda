#!/bin/sh
# Enqueue one event from a shell, without Watchbill: write a hidden file on the same disk, make it durable,
# rename it, make the rename durable. Usage: enqueue.sh SPOOL < event.json
set -eu
queue=${1:?usage: enqueue.sh SPOOL < event.json}/queue
mkdir -p "$queue"
name=$(date +%s%N)-$$-$(od -An -N8 -tx8 /dev/urandom | tr -d ' ')
cat > "$queue/.$name"
sync "$queue/.$name"
mv "$queue/.$name" "$queue/$name.jsonl"
sync "$queue"
echo "$name.jsonl"
