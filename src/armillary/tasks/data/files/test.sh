#!/bin/sh
# Grades /workdir/answer.txt. Writes 1 or 0 to /logs/verifier/reward.txt.
# Only a small regular file is an answer: a device or a huge file would keep the grader busy.
mkdir -p /logs/verifier
answer=/workdir/answer.txt
if [ ! -f "$answer" ] || [ -L "$answer" ] || [ "$(wc -c < "$answer")" -gt 4096 ]; then
    answer=/dev/null
fi
awk -f /tests/grader.awk < "$answer" > /logs/verifier/reward.txt
