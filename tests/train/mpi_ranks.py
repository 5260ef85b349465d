"""Runs `meshfold` on several ranks as a user does."""

import os
import subprocess

from meshfold_command import MESHFOLD, Run

MPIRUN = [
    *("mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"),
    *("--mca", "btl", "self,vader", "--mca", "btl_vader_single_copy_mechanism", "none"),
    *("--mca", "btl_base_warn_component_unused", "0"),
]
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def run_on(ranks, place, *args):
    """The finished `mpirun -n ranks meshfold args` in the folder of `place`."""
    process = subprocess.run(
        [*MPIRUN, "-n", str(ranks), MESHFOLD, *args],
        cwd=place.folder,
        env={**os.environ, **AS_ROOT},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=200,
    )
    return Run(process)
