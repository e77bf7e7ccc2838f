"""Sweep a suite on GPUs of a SLURM cluster, through dask-jobqueue.

    pip install '.[cluster]'                                        # in a clone of tritongemm
    python examples/cluster/slurm.py layers.csv --jobs 4            # submits, sweeps, ends the jobs
    python examples/cluster/slurm.py layers.csv --jobs 4 --show     # prints the job script only

Each job takes one node with its GPUs. `tritongemm worker` starts one worker for each of them. Jobs
that start late join the sweep; a job that reaches its time limit returns its problems.
"""

import argparse
import subprocess
import sys

from dask_jobqueue import SLURMCluster


def cluster_of(args: argparse.Namespace) -> SLURMCluster:
    """A scheduler here, and jobs of one node each."""
    return SLURMCluster(
        queue=args.partition, walltime=args.walltime, cores=args.cores, memory=args.memory,
        processes=1,  # of the job: `tritongemm worker` starts one worker a GPU
        job_extra_directives=[f"--gres=gpu:{args.gpus}", "--exclusive"],
        worker_command="tritongemm worker", interface=args.interface)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", help="a suite by name, or a CSV by path")
    parser.add_argument("--jobs", type=int, default=1, help="nodes (default 1)")
    parser.add_argument("--gpus", type=int, default=4, help="of each node (default 4)")
    parser.add_argument("--cores", type=int, default=32, help="of each node (default 32)")
    parser.add_argument("--memory", default="128GB", help="of each node (default 128GB)")
    parser.add_argument("--walltime", default="01:00:00", help="of each job (default 01:00:00)")
    parser.add_argument("--partition", help="default: the cluster's own")
    parser.add_argument("--interface", help="network interface of the nodes, e.g. ib0")
    parser.add_argument("--journal", default="sweep.jsonl")
    parser.add_argument("--show", action="store_true", help="print the job script and stop")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    with cluster_of(args) as cluster:
        if args.show:
            print(cluster.job_script())
            return 0
        cluster.scale(jobs=args.jobs)
        return subprocess.call(
            [sys.executable, "-m", "tritongemm", "sweep", args.suite, "--journal", args.journal,
             "--scheduler", cluster.scheduler_address])


if __name__ == "__main__":
    sys.exit(main())
