#!/usr/bin/env bash
# Usage: run_py_test.sh SCRIPT [FOLDER...]: runs the unittest cases of SCRIPT with the root and the
# folders on PYTHONPATH, from the root of the tree (under Bazel, of the runfiles).
set -euo pipefail
script=$1
shift
path=$PWD
for folder in "$@"; do path+=":$PWD/$folder"; done
exec env PYTHONPATH="$path" PYTHONDONTWRITEBYTECODE=1 \
  "${PYTHON:-/usr/bin/python3}" third_party/bazel/py_test_main.py "$script"
