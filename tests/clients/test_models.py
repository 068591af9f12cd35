from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from clients.models import MODELS, build
from fedio.config import Spec
from fedio.errors import InputError

GREY = (1, 28, 28)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def parameters_of(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("name", "parameters"), [("mlp", 79_510), ("cnn", 28_938)])
def test_sizes_at_28x28(name: str, parameters: int) -> None:
    assert parameters_of(build(Spec(name=name), GREY, 10, generator())) == parameters


@pytest.mark.parametrize("name", sorted(MODELS))
def test_weights_depend_on_the_generator_alone(name: str) -> None:
    torch.manual_seed(1)
    one = build(Spec(name=name), GREY, 10, generator()).state_dict()
    torch.manual_seed(2)
    two = build(Spec(name=name), GREY, 10, generator()).state_dict()
    other = build(Spec(name=name), GREY, 10, generator(1)).state_dict()
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert not all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_torchs_random_state_stays(name: str) -> None:
    before = torch.get_rng_state()
    numpy_before = np.random.get_state(legacy=False)["state"]["key"].copy()  # noqa: NPY002
    build(Spec(name=name), GREY, 10, generator())
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(np.random.get_state(legacy=False)["state"]["key"], numpy_before)  # noqa: NPY002


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 17, 30), (1, 4, 5)])
def test_any_shape_gives_one_row_of_classes(name: str, shape: tuple[int, int, int]) -> None:
    model = build(Spec(name=name), shape, 7, generator())
    with torch.no_grad():
        out = model(torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)))
    assert out.shape == (2, 7)
    assert torch.isfinite(out).all()


def test_resnet18_has_group_norm_and_nothing_that_is_not_a_float() -> None:
    model = build(Spec(name="resnet18"), (3, 32, 32), 10, generator())
    kinds = [type(module) for module in model.modules()]
    assert nn.GroupNorm in kinds
    assert nn.BatchNorm2d not in kinds
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
    assert 11_100_000 < parameters_of(model) < 11_200_000


def test_arguments_reach_the_model() -> None:
    spec = Spec(name="mlp", args={"hidden": 5})
    assert parameters_of(build(spec, GREY, 10, generator())) == 784 * 5 + 5 + 5 * 10 + 10


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("cnm", {}, "did you mean 'cnn'"),
        ("mlp", {"width": 3}, "does not take"),
        ("mlp", {"hidden": "many"}, "hidden"),
        ("mlp", {"hidden": -1}, "hidden"),
        ("nowhere:Model", {}, "cannot load model"),
    ],
)
def test_what_cannot_be_built_is_the_users_error(
    name: str, args: dict[str, object], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        build(Spec(name=name, args=args), GREY, 10, generator())
