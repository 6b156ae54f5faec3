"""What launchers say of a process is taken from them, or refused where it cannot be."""

import pytest

from iecl.errors import UserError
from iecl.launch import Launch, meeting_place, outside_launch, rank_at_start, usable_cores
from iecl.training.config import RunConfig, make_config, with_launch

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NNODES": "2"}


@pytest.mark.parametrize(("environment", "name"), [(TORCHRUN, "torchrun"), (SLURM, "SLURM")])
def test_a_launcher_tells_rank_and_world(environment: dict[str, str], name: str) -> None:
    launch = outside_launch(environment)
    assert launch == Launch(name, 3, 4, 1, 2)
    assert launch.nodes == 2
    assert rank_at_start(environment) == 3
    again = launch.variables("host", 1)  # what torch reads says the same
    assert outside_launch(again) == Launch("torchrun", 3, 4, 1, 2)


@pytest.mark.parametrize(
    ("environment", "rank"),
    [({}, 0), ({"NODE_RANK": "0"}, 0), ({"NODE_RANK": "1"}, 1), ({"LOCAL_RANK": "2", "NODE_RANK": "0"}, 2)],
)
def test_one_process_is_the_first_without_a_launcher_too(environment: dict[str, str], rank: int) -> None:
    assert outside_launch(environment) is None
    assert rank_at_start(environment) == rank


def test_a_shell_in_a_slurm_job_is_no_launch() -> None:
    assert outside_launch(SLURM | {"SLURM_JOB_NAME": "interactive"}) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"RANK": "4"}, "process 4 of 4"),
        ({"RANK": "x"}, "RANK is 'x'"),
        ({"RANK": "9" * 5000}, "must be a whole number"),
        ({"LOCAL_RANK": ""}, "LOCAL_RANK is not set"),
        ({"LOCAL_WORLD_SIZE": "3"}, "of 3 on this machine"),
        ({"WORLD_SIZE": "0", "LOCAL_WORLD_SIZE": "0"}, "of 0"),
    ],
)
def test_variables_that_contradict_each_other_are_refused(change: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        outside_launch(TORCHRUN | change)


@pytest.mark.parametrize(
    ("listed", "first"), [("node[07-09,12]", "node07"), ("a1,b2", "a1"), ("gpu[3]", "gpu3"), ("x-1-2", "x-1-2")]
)
def test_processes_of_slurm_meet_on_its_first_machine(listed: str, first: str) -> None:
    assert meeting_place({"SLURM_NODELIST": listed, "SLURM_JOB_ID": "81234"}) == (first, 16234)
    assert meeting_place({"MASTER_ADDR": "there", "MASTER_PORT": "5"}) == ("there", 5)


def config(**training: int) -> RunConfig:
    return make_config(flags={"data": {"name": "shapes"}, "training": training})


@pytest.mark.parametrize("asked", [{}, {"devices": 0}, {"devices": 0, "nodes": 2}, {"devices": 2, "nodes": 2}])
def test_a_run_has_the_processes_that_were_started(asked: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_launch(config(**asked)) == config(**asked)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    training = with_launch(config(**asked)).training
    assert (training.devices, training.nodes) == (2, 2)


@pytest.mark.parametrize("asked", [{"devices": 4}, {"devices": 1, "nodes": 2}, {"nodes": 4}])
def test_another_number_than_was_started_is_refused(asked: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="torchrun has started 2 processes on each of 2 machines, the settings ask for"):
        with_launch(config(**asked))


@pytest.mark.parametrize("strategy", ["dp", "fsdp1", "deepspeed", "ddp_find_unused_parameters_true", "ddp_spawn"])
def test_strategies_that_are_not_tested_are_refused_by_name(strategy: str) -> None:
    with pytest.raises(UserError, match=f"training.strategy is '{strategy}'"):
        make_config(flags={"data": {"name": "shapes"}, "training": {"strategy": strategy}})


@pytest.mark.parametrize(("granted", "cores"), [("1", 1), ("2", 2), ("64", 3), ("", 3), ("0", 3), ("many", 3)])
def test_cores_are_those_granted_to_this_process(monkeypatch: pytest.MonkeyPatch, granted: str, cores: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 4, 5})
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", granted)
    assert usable_cores() == cores
