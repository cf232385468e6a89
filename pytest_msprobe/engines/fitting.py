"""Whether an error says that the arguments of a dump do not fit the function of the installed framework.

Such an error comes before anything is computed, and says nothing of a device: the dump is of another version.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial

#: How compiled front ends and the tables here refuse arguments, and how functions without a signature do.
_FRONT_END = re.compile(
    r"Failed calling \w+ with"
    r"|received an invalid combination of arguments"
    r"|argument '\w+' \(position \d+\) must be"
    r"|the recorded arguments do not fit its signature"
)
_COUNTED = re.compile(
    r"unexpected keyword argument|takes [\w ]+ positional arguments? but|missing \d+ required"
    r"|multiple values for (?:keyword )?argument"
)


def is_misfit(error: BaseException, call: Callable[[], object]) -> bool:
    """Whether `error` is how the function of the partial `call` refuses the names, number or kinds of its arguments.

    The signature of a function of Python decides: the same words from inside of it are a fault of the framework.
    """
    call = partial(call)
    if not isinstance(error, TypeError):
        return False
    if _FRONT_END.search(str(error)):
        return True
    try:
        signature = inspect.signature(call.func)
    except (ValueError, TypeError):
        return _COUNTED.search(str(error)) is not None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        return _COUNTED.search(str(error)) is not None
    try:
        signature.bind(*call.args, **call.keywords)
    except TypeError:
        return True
    return False
