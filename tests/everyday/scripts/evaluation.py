"""Evaluate a model under `inference_mode` with the five lines of the collector: `evaluation.py DUMP`."""

import sys

import torch

from msprobe_collector.pytorch import PrecisionDebugger

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 5)).eval()
debugger = PrecisionDebugger(dump_path=sys.argv[1], task="tensor", level="mix")
for inputs in torch.randn(1, 16, 6):
    debugger.start(model)
    with torch.inference_mode():
        scores = model(inputs).softmax(-1)
    debugger.stop()
    debugger.step()
