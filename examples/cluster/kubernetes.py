"""Sweep a suite on GPUs of a Kubernetes cluster, through the operator of dask-kubernetes.

    pip install 'tritongemm[cluster,kubernetes]'
    python examples/cluster/kubernetes.py --image REGISTRY/tritongemm:TAG --workers 4 --show
    python examples/cluster/kubernetes.py --image REGISTRY/tritongemm:TAG --workers 4 llm_decode

Each pod has one GPU and one worker. The image holds tritongemm with the extra [cluster], of the
version that is installed here. `--show` prints the manifest, for `kubectl apply -f`.
"""

import argparse
import json
import subprocess
import sys

from dask_kubernetes.operator import KubeCluster, make_cluster_spec


def manifest(args: argparse.Namespace) -> dict:
    """The DaskCluster resource: a scheduler, and a pod for each GPU."""
    gpu = {"nvidia.com/gpu": "1"}
    resources = {"limits": {**gpu, "cpu": str(args.cores), "memory": args.memory}}
    spec = make_cluster_spec(name=args.name, image=args.image, n_workers=args.workers,
                             worker_command=["dask", "worker", "--nthreads", "3"])
    worker = spec["spec"]["worker"]["spec"]["containers"][0]
    worker["resources"] = resources
    worker["env"] = [*(worker.get("env") or []),
                     {"name": "TRITONGEMM_CACHE_DIR", "value": "/tmp/tritongemm"}]
    return spec


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", nargs="?", help="a suite by name, or a CSV by path")
    parser.add_argument("--image", required=True, help="holds tritongemm[cluster]")
    parser.add_argument("--name", default="tritongemm")
    parser.add_argument("--workers", type=int, default=1, help="pods, one GPU each (default 1)")
    parser.add_argument("--cores", type=int, default=8, help="of each pod (default 8)")
    parser.add_argument("--memory", default="32Gi", help="of each pod (default 32Gi)")
    parser.add_argument("--journal", default="sweep.jsonl")
    parser.add_argument("--show", action="store_true", help="print the manifest and stop")
    args = parser.parse_args()
    if not (args.show or args.suite):
        parser.error("name a suite, or --show")
    return args


def main() -> int:
    args = arguments()
    if args.show:
        print(json.dumps(manifest(args), indent=2))
        return 0
    with KubeCluster(custom_cluster_spec=manifest(args)) as cluster:
        return subprocess.call(
            [sys.executable, "-m", "tritongemm", "sweep", args.suite, "--journal", args.journal,
             "--scheduler", cluster.scheduler_address])


if __name__ == "__main__":
    sys.exit(main())
