"""Data for the look-ahead tests that worker and child processes import."""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

LENGTHS = np.random.default_rng(0).integers(2, 60, 203)


def sample(index: int) -> dict[str, torch.Tensor]:
    ids = torch.full((int(LENGTHS[index]),), 5)
    ids[0] = index + 10
    return {"input_ids": ids, "labels": ids.clone()}


class Samples(Dataset):
    def __init__(self, size: int = len(LENGTHS)) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return sample(index)


class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return (sample(index) for index in range(first, len(LENGTHS), step))
