#!/usr/bin/env bash
# Usage: run_libfuzzer.sh RUNS PROGRAM [CORPUS FILE...]: a short, seeded libFuzzer run. An input that
# crashes is kept in the test's outputs.
set -euo pipefail
runs=$1 program=$2
shift 2
corpus=$(mktemp -d "${TEST_TMPDIR:-/tmp}/corpus.XXXXXX")
trap 'rm -rf "$corpus"' EXIT
for file in "$@"; do cp -L "$file" "$corpus/"; done
"$program" -runs="$runs" -seed=1 -timeout=60 -rss_limit_mb=2048 -print_final_stats=1 \
  -artifact_prefix="${TEST_UNDECLARED_OUTPUTS_DIR:-.}/" "$corpus"
