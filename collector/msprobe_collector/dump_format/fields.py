"""Fields of a record in dump.json, and of a tensor in it, by the names that the file gives them."""

from __future__ import annotations

ARGUMENTS = "input_args"
KEYWORDS = "input_kwargs"
#: Incoming gradients of a backward record.
INCOMING = "input"
PARAMETERS = "parameters"
OUTPUT = "output"
OTHER_GRADIENTS = "other_gradients"
#: What the class of a Primitive was called with.
ATTRIBUTES = "attributes"
#: Device type and dtype of the autocast under which a PyTorch call ran.
AUTOCAST = "autocast"

#: Fields that hold values of the run, in the order of tables.
VALUE_FIELDS = (ARGUMENTS, KEYWORDS, INCOMING, PARAMETERS, OUTPUT, OTHER_GRADIENTS)
#: Fields of values that existed before the call.
INPUT_FIELDS = frozenset({ARGUMENTS, KEYWORDS, INCOMING, PARAMETERS})

#: Statistics of a tensor: maximum, minimum, mean and Euclidean norm.
STATISTICS = ("Max", "Min", "Mean", "Norm")
NAN_COUNT = "NaN_count"
INF_COUNT = "Inf_count"
DATA_NAME = "data_name"
CHECKSUM = "md5"
FINGERPRINT = "fingerprint"
