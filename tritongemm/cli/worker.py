"""``tritongemm worker``: this host's GPUs as workers of a Dask cluster."""

from __future__ import annotations

import argparse

#: Options of ``dask worker`` that are handed on, with their value's name.
_HANDED_ON = {"--memory-limit": "BYTES", "--death-timeout": "SECONDS", "--local-directory": "DIR",
              "--interface": "NAME", "--host": "ADDRESS", "--tls-ca-file": "PEM",
              "--tls-cert": "PEM", "--tls-key": "PEM"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument("scheduler", metavar="ADDRESS",
                        help="address of the Dask scheduler, such as tcp://10.0.0.1:8786")
    parser.add_argument("--devices", default="all", metavar="LIST",
                        help="`all`, or CUDA indices such as 0,1 (default %(default)s); under "
                             "TRITON_INTERPRET=1 `all` is one worker on the CPU")
    parser.add_argument("--name", default="", metavar="NAME",
                        help="name of this host in the cluster (default: Dask names the workers)")
    handed_on = parser.add_argument_group("passed to `dask worker`")
    for option, value in _HANDED_ON.items():
        handed_on.add_argument(option, metavar=value, help=f"see `dask worker {option}`")
    handed_on.add_argument("--nanny", action=argparse.BooleanOptionalAction, default=True,
                           help="whether a worker that dies is started again (default: yes)")
    handed_on.add_argument("--nthreads", type=int, metavar="N",
                           help="accepted because dask-jobqueue passes it, and ignored: each "
                                "worker has as many threads as a GPU can use")


def run(args: argparse.Namespace) -> int:
    """Serves until a signal comes; 1 where a worker failed."""
    from tritongemm.tuning.cluster_host import gpus_of, serve

    others = ["--nanny" if args.nanny else "--no-nanny"]
    for option in _HANDED_ON:
        value = getattr(args, option[2:].replace("-", "_"))
        if value is not None:
            others += [option, value]
    return serve(args.scheduler, gpus_of(args.devices), args.name, others)
