import pytest
import torch

from division import doctor
from division.kernels import ops
from division.kernels.cpu import library
from division.nodes import HAS_HOOK


def test_it_tells_of_every_op_on_every_device() -> None:
    found = doctor.examine()
    assert set(found) == {
        "versions", "devices", "bodies", "compiled", "nodes", "threads", "environment", "advice",
    }  # fmt: skip
    assert {(body["op"], body["device"]) for body in found["bodies"]} == {
        (op, device) for op in ops.names() for device in found["devices"]
    }
    assert {"dual_encode", "dual_decode", "group_encode", "bits_decode", "window_encode", "block_pool"} <= set(
        ops.names()
    )
    assert {body["body"] for body in found["bodies"] if body["device"] == "cpu"} <= set(library.BODIES)
    assert found["versions"]["torch"] == torch.__version__
    assert found["nodes"] == ("node_creation_hook" if HAS_HOOK else "walking")
    assert found["compiled"]["here"] == (library.RUNNABLE != ("reference",))


def test_it_sees_a_forced_body_and_says_so() -> None:
    with library.forced("reference"):
        found = doctor.examine()
    assert {body["body"] for body in found["bodies"] if body["device"] == "cpu"} == {"reference"}
    assert all(body["why"] for body in found["bodies"] if body["device"] == "cpu")
    told = " ".join(line for line in found["advice"] if line.startswith("cpu: "))
    assert "every op" in told or all(op in told for op in ops.names())


def test_a_slower_body_than_the_fastest_is_told() -> None:
    with library.forced(library.RUNNABLE[-1]):
        assert not any("is used where" in line for line in doctor.examine()["advice"])
    for name in library.RUNNABLE[1:-1]:
        with library.forced(name):
            told = [line for line in doctor.examine()["advice"] if "is used where" in line]
        assert told == [f"cpu: {name} is used where {library.RUNNABLE[-1]} runs too: forced to {name}"]


def test_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    environment = doctor.examine()["environment"]
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["TRITON_INTERPRET"] is None
    assert "DIVISION_KERNELS" in environment


def body(op: str, name: str, why: str = "", device: str = "cpu") -> dict[str, str]:
    return {"op": op, "device": device, "body": name, "why": why}


def test_advice() -> None:
    assert doctor.advice([body("a", "avx512"), body("b", "triton", device="cuda:0")], hook=True, cuda=False) == []
    some = [body("a", "reference", "no compiler"), body("b", "avx2"), body("c", "reference", "no compiler")]
    (line,) = doctor.advice(some, hook=True, cuda=False)
    assert line == "cpu: a, c run in plain PyTorch, several times slower: no compiler"
    (line,) = doctor.advice([body("a", "reference", "a has no other body for cpu")], hook=True, cuda=False)
    assert line == "cpu: a runs in plain PyTorch, several times slower: there is no faster body"
    every = [body(op, "reference", "no compiler") for op in ops.names()]
    (line,) = doctor.advice(every, hook=True, cuda=False)
    assert line == "cpu: every op runs in plain PyTorch, several times slower: no compiler"
    (line,) = doctor.advice([], hook=False, cuda=False)
    assert "torch 2.14 or newer" in line


def test_a_gpu_wants_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version_of", lambda package: None)
    assert doctor.advice([], hook=True, cuda=True) == ["a GPU is here and Triton is not: pip install triton"]
    assert doctor.advice([], hook=True, cuda=False) == []
    monkeypatch.setattr(doctor, "version_of", lambda package: "3.8")
    assert doctor.advice([], hook=True, cuda=True) == []
