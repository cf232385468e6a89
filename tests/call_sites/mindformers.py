"""As MindFormers does: a callback of Model.train."""

import sys

import numpy as np
from mindspore import Model, dataset, nn
from msprobe.mindspore import PrecisionDebugger
from msprobe.mindspore.common.utils import MsprobeStep

debugger = PrecisionDebugger(task="statistics", level="L1", dump_path=sys.argv[1])
network = nn.Dense(8, 4)
rows = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
data = dataset.NumpySlicesDataset({"x": rows, "y": rows[:, :4]}, shuffle=False).batch(4)
model = Model(network, loss_fn=nn.MSELoss(), optimizer=nn.SGD(network.trainable_params(), 0.1))
model.train(1, data, callbacks=[MsprobeStep(debugger)], dataset_sink_mode=False)
