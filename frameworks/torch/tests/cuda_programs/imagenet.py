"""A process for each GPU over multiprocessing, in the manner of pytorch/examples' imagenet."""

import argparse
import json
import os

import torch
import torch.backends.cudnn as cudnn
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from pieces.mlp import MLP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--gpu", type=int, default=None)
    parser.add_argument("--dist-backend", default="nccl")
    parser.add_argument("-j", "--workers", type=int, default=2)
    return parser.parse_args()


def main():
    args = parse()
    ngpus_per_node = torch.cuda.device_count()
    if args.gpu is None and ngpus_per_node > 1:
        mp.spawn(main_worker, nprocs=ngpus_per_node, args=(ngpus_per_node, args))
    else:
        main_worker(args.gpu, 1, args)


def main_worker(gpu, world_size, args):
    args.gpu = gpu
    distributed = world_size > 1
    if distributed:
        dist.init_process_group(
            backend=args.dist_backend, init_method=f"file://{args.folder}/meeting", world_size=world_size, rank=gpu
        )
        assert dist.get_backend() == "nccl"
    torch.manual_seed(3)
    model = MLP(6, 8, 3)
    if not torch.cuda.is_available():
        device = torch.device("cpu")
    else:
        if args.gpu is not None:
            torch.cuda.set_device(args.gpu)
        device = torch.device("cuda", args.gpu if args.gpu is not None else 0)
        model.cuda(args.gpu)
        if distributed:
            model = nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
    cudnn.benchmark = True
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    dataset = TensorDataset(torch.randn(32, 6, generator=torch.Generator().manual_seed(4)), torch.arange(32) % 3)
    sampler = DistributedSampler(dataset, shuffle=False) if distributed else None
    loader = DataLoader(dataset, batch_size=8 // world_size, sampler=sampler, num_workers=args.workers, pin_memory=True)
    for _epoch in range(2):
        for images, target in loader:
            images = images.to(device, non_blocking=True)
            target = target.cuda(args.gpu, non_blocking=True) if torch.cuda.is_available() else target
            output = model(images)
            loss = criterion(output, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if not distributed or gpu == 0:
        plain = model.module if distributed else model
        path = os.path.join(args.folder, "checkpoint.pth.tar")
        torch.save({"state_dict": plain.state_dict()}, path)
        loc = f"cuda:{gpu}" if device.type == "cuda" and gpu is not None else str(device)
        state = torch.load(path, map_location=loc)["state_dict"]
        assert all(value.device == device for value in state.values())
        total = sum(value.double().sum().item() for value in state.values())
        with open(os.path.join(args.folder, "result.json"), "w") as out:
            json.dump({"device": str(device), "total": total, "world": world_size}, out)
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
