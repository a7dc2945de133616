"""What the library does through names that torch doesn't promise."""

import signal
from _thread import interrupt_main
from collections import deque
from operator import call
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from division.private import address_of, plain, storage_of

CPU = torch.device("cpu")


class Heard(TorchFunctionMode):
    """Notes the name of every call it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_plain_work_leaves_the_modes_as_they_were(grad: bool, autocast: bool, fails: bool) -> None:
    x = torch.randn(2, 2, requires_grad=True)
    with torch.set_grad_enabled(grad), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        try:
            with plain(CPU):
                y = x @ x
                assert (y.requires_grad, y.dtype) == (False, torch.float32)
                if fails:
                    raise KeyError
        except KeyError:
            pass
        y = x @ x
        assert (y.requires_grad, y.dtype) == (grad, torch.bfloat16 if autocast else torch.float32)


def test_plain_work_is_unseen_by_function_modes() -> None:
    x = torch.randn(2, 2)
    with Heard() as heard:
        x.sin()
        with plain(CPU):
            x.cos()
        x.tan()
    assert heard.calls == ["sin", "tan"]


def test_plain_work_within_plain_work() -> None:
    x = torch.randn(2, requires_grad=True)
    with plain(CPU):
        with plain(CPU):
            pass
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad


def test_plain_work_on_a_device_without_autocast() -> None:
    with plain(torch.device("meta")):
        assert torch.empty(2, device="meta").sin().device.type == "meta"


@pytest.mark.usefixtures("no_gc")  # which may run some other object's `__del__`, where an interruption gets lost
def test_letting_go_of_a_storage_loses_no_interruption() -> None:
    held = [storage_of(torch.zeros(4))]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            # The signal is there when the last reference goes, and no Python code has run in between.
            deque(map(call, (interrupt_main, held.clear)), maxlen=0)
    finally:
        signal.signal(signal.SIGINT, before)
    assert held == []


def test_a_storage_is_known_by_its_address_until_it_is_let_go() -> None:
    x, y = torch.zeros(6, 4), torch.zeros(6, 4)
    storage = storage_of(x[2:])
    assert (storage.address, storage.nbytes) == (address_of(x), 96)
    assert address_of(y) != storage.address
    assert not storage.expired()
    del x
    assert storage.expired()
    # The address is taken as long as the weak hold lasts, whatever is made meanwhile.
    assert storage.address not in {address_of(each) for each in [torch.zeros(6, 4) for _ in range(100)]}
