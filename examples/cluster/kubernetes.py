"""Sweep a suite on GPUs of a Kubernetes cluster, through the operator of dask-kubernetes.

    pip install '.[cluster,kubernetes]'                             # in a clone of tritongemm
    python examples/cluster/kubernetes.py --image REGISTRY/tritongemm:TAG --workers 4 --show
    python examples/cluster/kubernetes.py --image REGISTRY/tritongemm:TAG --workers 4 layers.csv

Each pod has one GPU and one worker. The image holds tritongemm with the extra [cluster], of the
version that is installed here. `--show` prints the manifest, for `kubectl apply -f`, and needs
neither package.
"""

import argparse
import json
import subprocess
import sys

#: The scheduler's ports, by the names under which the operator and KubeCluster find them.
PORTS = {"tcp-comm": 8786, "http-dashboard": 8787}


def manifest(args: argparse.Namespace) -> dict:
    """The DaskCluster resource: a scheduler, and a pod for each GPU.

    https://kubernetes.dask.org/en/latest/operator_resources.html describes its fields. The operator
    sets DASK_WORKER_NAME, and DASK_SCHEDULER_ADDRESS, to which `dask worker` connects.
    """
    scheduler = {
        "name": "scheduler", "image": args.image,
        "args": ["dask", "scheduler", "--host", "0.0.0.0"],
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"}
                  for name, port in PORTS.items()],
        "readinessProbe": {"httpGet": {"port": "http-dashboard", "path": "/health"}}}
    worker = {
        "name": "worker", "image": args.image,
        "args": ["dask", "worker", "--nthreads", "3", "--name", "$(DASK_WORKER_NAME)",
                 "--no-dashboard"],
        "env": [{"name": "TRITONGEMM_CACHE_DIR", "value": "/tmp/tritongemm"}],
        "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": str(args.cores),
                                 "memory": args.memory}}}
    service = {
        "type": "ClusterIP",
        "selector": {"dask.org/cluster-name": args.name, "dask.org/component": "scheduler"},
        "ports": [{"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
                  for name, port in PORTS.items()]}
    return {
        "apiVersion": "kubernetes.dask.org/v1", "kind": "DaskCluster",
        "metadata": {"name": args.name},
        "spec": {"scheduler": {"spec": {"containers": [scheduler]}, "service": service},
                 "worker": {"replicas": args.workers, "spec": {"containers": [worker]}}}}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", nargs="?", help="a suite by name, or a CSV by path")
    parser.add_argument("--image", required=True, help="holds tritongemm with the extra [cluster]")
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
    from dask_kubernetes.operator import KubeCluster  # the manifest is printed without it

    with KubeCluster(custom_cluster_spec=manifest(args)) as cluster:
        return subprocess.call(
            [sys.executable, "-m", "tritongemm", "sweep", args.suite, "--journal", args.journal,
             "--scheduler", cluster.scheduler_address])


if __name__ == "__main__":
    sys.exit(main())
