"""Trains until it is ended; torchrun starts it on two nodes, of which one is to fail.

elastic_training.py DIRECTORY
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rank_exporter


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    exporter = rank_exporter.start(directory=sys.argv[1], serve="off", host=f"node-{dist.get_world_size()}")
    exporter.watch(model=model, optimizer=optimizer)
    while True:
        time.sleep(0.05)
        model(torch.ones(4, 8)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


main()
