"""Experiment files: what is accepted, what is refused, and how the refusal reads."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from fedio.config import Cache, Experiment, Training
from fedio.errors import InputError
from fedio.loading import differing_keys, find, load, presets, with_values


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.toml"
    path.write_text('name = "x"\n[rounds]\ncohort = 3\n')
    return path


@pytest.mark.parametrize("name", presets())
def test_every_preset_loads_and_survives_a_round_trip(name: str, tmp_path: Path) -> None:
    experiment = load(find(name))
    path = tmp_path / "again.toml"
    path.write_text(experiment.to_toml())
    assert load(path) == experiment
    assert load(path).digest == experiment.digest


def test_overrides_are_toml_values_or_text(file: Path) -> None:
    experiment = load(file, ["rounds.cohort=4", "model=cnn", "arms.a.policy.name=static"])
    assert experiment.rounds.cohort == 4
    assert experiment.model.name == "cnn"
    assert experiment.arms["a"].policy.name == "static"


def test_an_override_reaches_into_a_plugin_named_by_a_string(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('name = "x"\nmodel = "mlp"\n')
    assert load(path, ["model.args.hidden=7"]).model.args == {"hidden": 7}


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("cache.budget_byte=4", "did you mean 'budget_bytes'"),
        ("cache.budget_bytes=-1", "cache.budget_bytes: Input should be greater than or equal to 0"),
        ("cache.budget_bytes='64 MB'", "cache.budget_bytes"),
        ("rounds.cohort=11", "rounds.cohort is 11 but data.clients is 10"),
        ("rounds.deadline_s='3 min'", "rounds.deadline_s"),
        ("rounds=5", "rounds"),
        ("data.partition.kind='odd'", "'iid', 'dirichlet' or 'pathological'"),
        ("data.partition.samples={median=5, min=9, max=9}", "min <= median <= max"),
        ("arm='nobody'", "unknown arm 'nobody'"),
        ("fleet.profiles={}", "at least one profile"),
        ("training.accelerator='gpu'", "training.accelerator"),
        ("nonsense=1", "unknown key 'nonsense'"),
        ("rounds.cohort", "takes key=value"),
        ("name.a=1", "x.toml: name"),
        ("cache={share=0.1, budget_bytes=5}", "not both"),
    ],
)
def test_wrong_input_is_one_line_that_names_the_key(file: Path, override: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        load(file, [override])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not TOML"):
        load(path)
    with pytest.raises(InputError, match="No such file"):
        load(tmp_path / "none.toml")


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"unknown preset 'smok'.*did you mean 'smoke'"):
        find("smok")
    with pytest.raises(InputError, match="no experiment file"):
        find("folder/none.toml")


def test_the_digest_covers_what_changes_results_and_nothing_else(file: Path) -> None:
    base = load(file)
    same = ["engine.workers=2", "data.folder='/elsewhere'", "cache.keep=true", "description='d'"]
    assert load(file, same).digest == base.digest
    for other in ("seed=1", "training.lr=0.1", "arms.uniform.policy='static'"):
        assert load(file, [other]).digest != base.digest
    assert load(file, ["seed=1"]).setting == base.setting


def test_an_arm_is_chosen_by_name(file: Path) -> None:
    experiment = load(file, ["arms.a.policy='lru'", "arms.b.policy='static'"])
    assert experiment.chosen.policy.name == "lru"
    assert experiment.for_arm("b", seed=3).chosen.policy.name == "static"
    assert experiment.for_arm("b", seed=3).seed == 3
    with pytest.raises(InputError, match="known: a, b"):
        experiment.for_arm("c")


def test_differing_keys_are_named(file: Path) -> None:
    other = load(file, ["training.lr=0.2", "seed=4"])
    assert differing_keys(load(file), other) == ["seed", "training.lr"]


def test_the_learning_rate_decays_in_steps() -> None:
    training = Training(lr=1.0, lr_decay=0.5, lr_decay_every_rounds=10)
    rounds = (1, 10, 11, 20, 21)
    assert [training.lr_of(r) for r in rounds] == [1.0, 1.0, 0.5, 0.5, 0.25]


def test_a_budget_is_a_share_or_bytes() -> None:
    assert Cache(share=0.25).budget_of(1000) == 250
    assert Cache(budget_bytes=7).budget_of(1000) == 7
    assert Cache().budget_of(1000) == 200


VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["rounds", "cache", "share", "x", "name"]), inner)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(Experiment.model_fields)), VALUES, max_size=2))
def test_any_values_are_accepted_or_refused_in_one_line(values: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.toml"
        path.write_text(tomli_w.dumps({"name": "x"} | values))
        try:
            said = ""
            load(path)
        except InputError as error:
            said = str(error)
    assert "\n" not in said


def test_a_file_extends_another_key_by_key(tmp_path: Path) -> None:
    base, file = tmp_path / "base.toml", tmp_path / "own.toml"
    base.write_text(
        'name = "base"\n[data]\nclients = 7\n[rounds]\nrounds = 3\n[arms.a]\npolicy = "fifo"\n'
    )
    file.write_text(
        'extends = "base.toml"\nname = "own"\n[rounds]\ncohort = 2\n[arms.b]\n'
        '[compare]\narms = ["b", "a"]\n'
    )
    experiment = load(file)
    assert (experiment.name, experiment.data.clients) == ("own", 7)
    assert (experiment.rounds.rounds, experiment.rounds.cohort) == (3, 2)
    assert list(experiment.arms) == ["a", "b"]
    assert experiment.compare.arms == ["b", "a"]


def test_a_file_that_extends_itself_in_a_circle_is_refused(tmp_path: Path) -> None:
    for one, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{one}.toml").write_text(f'extends = "{other}.toml"\nname = "{one}"\n')
    with pytest.raises(InputError, match="in turn"):
        load(tmp_path / "a.toml")


def test_a_file_that_extends_what_is_not_there_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    for value, said in (('"gone.toml"', "no experiment file"), ("3", "extends")):
        file.write_text(f'extends = {value}\nname = "a"\n')
        with pytest.raises(InputError, match=said):
            load(file)


def test_values_change_by_dotted_key_and_are_checked(file: Path) -> None:
    experiment = load(file)
    assert with_values(experiment, {"data.partition.alpha": 2.0}).data.partition.alpha == 2
    with pytest.raises(InputError, match="alpha"):
        with_values(experiment, {"data.partition.alpha": -1})


def test_an_arm_with_warm_caches_leaves_no_trace(file: Path) -> None:
    experiment = load(file, ["engine.record_trace=true", "arms.one.cache=warm", "arms.two={}"])
    assert experiment.for_arm("two").arm == "two"
    with pytest.raises(InputError, match="warm"):
        experiment.for_arm("one")


def test_a_plugin_and_the_cells_of_an_axis_are_replaced_as_a_whole(tmp_path: Path) -> None:
    axis = '[map.axes.x]\ntitle = "T"\nquestion = "Q"\nregime = "R"\n'
    base, file = tmp_path / "base.toml", tmp_path / "own.toml"
    base.write_text(
        'name = "base"\n[arms.a]\nselector = { name = "io_aware", args = { io = "free" } }\n'
        f'{axis}[map.axes.x.cells]\none = {{ "cache.share" = 0.1 }}\n'
    )
    file.write_text(
        'extends = "base.toml"\nname = "own"\n[arms.a]\nselector = { name = "oort" }\n'
        '[map.axes.x.cells]\ntwo = { "cache.share" = 0.2 }\n'
    )
    experiment = load(file)
    assert experiment.arms["a"].selector.args == {}
    assert experiment.map.axes["x"].cells == {"two": {"cache.share": 0.2}}


def test_other_values_leave_the_experiment_as_it_is(file: Path) -> None:
    sizes = {"size_bytes": {"median": 2, "min": 1, "max": 3}, "prepared_bytes": 100}
    changes: dict[str, object] = {"data.nominal": sizes, "data.nominal.prepared_bytes": 200}
    nominal = with_values(load(file), changes).data.nominal
    assert nominal is not None
    assert nominal.prepared_bytes == 200
    assert sizes["prepared_bytes"] == 100
