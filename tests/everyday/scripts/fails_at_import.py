"""Fail before the training, at an import."""

import tokenizer_that_is_not_installed as tokenizer
import torch

torch.nn.Linear(6, 8)(tokenizer.read())
