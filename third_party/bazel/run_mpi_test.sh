#!/usr/bin/env bash
# Usage: run_mpi_test.sh RANKS PROGRAM [ARGS...]: a test on several ranks of this machine, which may
# have fewer cores. Rank 0 alone writes the result file.
set -euo pipefail
ranks=$1
shift
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Open MPI keeps memory until the process ends; leaks are looked for without it.
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:detect_leaks=0"
exec mpirun -n "$ranks" --oversubscribe --bind-to none \
  --mca mpi_yield_when_idle 1 --mca btl self,vader \
  --mca btl_vader_single_copy_mechanism none --mca btl_base_warn_component_unused 0 \
  bash -c '[[ $OMPI_COMM_WORLD_RANK == 0 ]] || unset XML_OUTPUT_FILE; exec "$@"' rank "$@"
