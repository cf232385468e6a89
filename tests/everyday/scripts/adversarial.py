"""Train a generator against a discriminator, which sees each false batch twice."""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits as loss

torch.manual_seed(0)
generator = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LeakyReLU(0.2), torch.nn.Linear(8, 6))
discriminator = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LeakyReLU(0.2), torch.nn.Linear(8, 1))
optimizers = [torch.optim.Adam(model.parameters(), betas=(0.5, 0.999)) for model in (generator, discriminator)]
true, false = torch.randn(5, 6), generator(torch.randn(5, 4))
(loss(discriminator(true), torch.ones(5, 1)) + loss(discriminator(false.detach()), torch.zeros(5, 1))).backward()
optimizers[1].step()
loss(discriminator(false), torch.ones(5, 1)).backward()
optimizers[0].step()
