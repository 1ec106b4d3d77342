"""Which trials train in which stage, as tables."""

import itertools

import numpy as np
import pytest

from algorithms.launch.engine import schedule
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.grids import Asked
from algorithms.launch.engine.results import Outcome
from algorithms.launch.engine.schedule import Next, Schedule


def rungs(plan):
    return [(r.bracket, r.settings, r.last(27), r.keep) for r in plan.rungs]


def test_rungs_of_successive_halving():
    plan = schedule.plan(Asked(halving=3), 81, 27)
    assert rungs(plan) == [(0, 81, 1, 27), (0, 27, 3, 9), (0, 9, 9, 3), (0, 3, 27, 0)]
    assert plan.settings == [[*range(81)]]
    plan = schedule.plan(Asked(halving=3, rungs=2), 81, 27)
    assert rungs(plan) == [(0, 81, 9, 27), (0, 27, 27, 0)]
    assert rungs(schedule.plan(Asked(halving=4), 10, 27)) == [(0, 10, 7, 2), (0, 2, 27, 0)]


def test_brackets_of_hyperband_cost_about_the_same_and_share_all_settings():
    plan = schedule.plan(Asked(halving=3, brackets=4), 81, 27)
    assert sorted(itertools.chain(*plan.settings)) == [*range(81)]
    cost, before = dict.fromkeys(range(4), 0.0), 0
    for rung in plan.rungs:
        before = 0 if rung.number == 0 else before
        cost[rung.bracket] += rung.settings * (rung.last(27) - before)
        before = rung.last(27)
    assert max(cost.values()) < 1.35 * min(cost.values())
    counts = [sum(r.bracket == b for r in plan.rungs) for b in range(4)]
    assert counts == [4, 3, 2, 1]  # the last bracket prunes nothing
    for mine in plan.settings:  # no bracket has one end of a grid alone
        assert min(mine) < 27 and max(mine) >= 54


@pytest.mark.parametrize(
    ("asked", "settings", "points", "words"),
    [
        (Asked(halving=1), 9, 9, "halving=1: keep one setting in 2 or more"),
        (Asked(halving=3), 2, 9, "needs 3 settings and num_evals=3 points"),
        (Asked(halving=3), 9, 2, "here are 9 and 2"),
        (Asked(halving=3, rungs=4), 9, 9, "rungs=4: give 2 to 3"),
        (Asked(halving=3, rungs=1), 9, 9, "rungs=1: give 2 to 3"),
        (Asked(halving=3, brackets=4), 9, 9, "brackets=4: give 1 to 3"),
        (Asked(halving=3, brackets=0), 9, 9, "brackets=0: give 1 to 3"),
    ],
)
def test_refused_plans(asked, settings, points, words):
    with pytest.raises(UserError, match=words):
        schedule.plan(asked, settings, points)


# --- the trials of the next stage -------------------------------------------------------------


def came_to(finals, rungs=(), brackets=(), environments=1, num_seeds=2, broken=()):
    """What trials came to, of settings one after another; each seed's return is a bit higher."""
    outcomes = []
    for number in range(len(finals) * num_seeds):
        setting, seed = divmod(number, num_seeds)
        names = {"env": f"env{setting * environments // len(finals)}"} if environments > 1 else {}
        one = Outcome(
            setting=names | {"gamma": setting},
            seed=5 + seed,
            timesteps=np.array([10]),
            returns=np.array([finals[setting] + 0.1 * seed]),
            is_finite=number not in broken,
            run="",
            trial=0,
            bracket=brackets[setting] if brackets else 0,
            rung=rungs[setting] if rungs else 0,
            number=number,
        )
        outcomes.append(one)
    return outcomes


def made(asked, num_settings, num_points=27, num_seeds=2):
    return schedule.of(asked, range(5, 5 + num_seeds), num_settings, num_points)


SIX = [3.0, 9.0, 1.0, 7.0, 8.0, 2.0]


@pytest.mark.parametrize(
    ("asked", "outcomes", "stage", "numbers"),
    [
        (Asked(halving=3), came_to(SIX), 1, [2, 3, 8, 9]),
        (Asked(halving=2, rungs=2), came_to(SIX), 1, [2, 3, 6, 7, 8, 9]),
        (Asked(halving=3), came_to(SIX, broken=[3]), 1, [6, 7, 8, 9]),
        (Asked(halving=3, objective="worst"), came_to([*SIX[:4], 9.0, 2.0]), 1, [2, 3, 8, 9]),
        # Of those that came to the rung before: 1, 3 and 4, not 0, which trained for less.
        (Asked(halving=2, rungs=3), came_to([99.0, *SIX[1:]], [0, 1, 0, 1, 1, 0]), 2, [2, 3]),
    ],
    ids=["best", "half", "broken", "worst", "rung"],
)
def test_the_best_settings_of_a_rung_go_on_with_all_their_seeds(asked, outcomes, stage, numbers):
    expected = [Next(number, number, 5 + number % 2, True) for number in numbers]
    assert made(asked, 6).following(stage, outcomes) == expected


def test_environments_and_brackets_compete_by_themselves():
    two = came_to([1.0, 2.0, 3.0, 50.0, 60.0, 70.0], environments=2, num_seeds=1)
    assert [one.number for one in made(Asked(halving=3), 3).following(1, two)] == [2, 5]
    plan = made(Asked(halving=2, rungs=2, brackets=2), 6)
    stage = next(i for i, rung in enumerate(plan.plan.rungs) if rung.number)
    mine = plan.plan.settings[plan.plan.rungs[stage].bracket]
    brackets = [plan.plan.rungs[stage].bracket if i in mine else 7 for i in range(6)]
    finals = [float(i) + 100.0 * (i not in mine) for i in range(6)]
    kept = plan.following(stage, came_to(finals, brackets=brackets, num_seeds=1))
    assert [one.number for one in kept] == sorted(mine)[-plan.plan.rungs[stage - 1].keep :]


def test_a_retest_has_new_trials_of_the_best_settings():
    asked = Asked(retest=2, retest_seeds=3)
    again = made(asked, 6).following(1, came_to(SIX))
    likes = [2, 2, 2, 8, 8, 8]  # the first trials of settings 1 and 4, the best one first
    seeds = [7, 8, 9] * 2  # 5 and 6 are the sweep's
    expected = [Next(12 + i, like, seed, False) for i, (like, seed) in enumerate(zip(likes, seeds))]
    assert again == expected


@pytest.mark.parametrize(
    ("asked", "names", "firsts"),
    [
        (Asked(), [""], [0]),
        (Asked(retest=1), ["sweep", "retest"], [0, 0]),
        (
            Asked(halving=3, rungs=3, retest=1),
            ["rung 1 of 3", "rung 2 of 3", "rung 3 of 3", "retest"],
            [0, 3, 9, 0],
        ),
        (
            Asked(halving=3, rungs=2, brackets=2),
            [
                "bracket 1 of 2, rung 1 of 2",
                "bracket 1 of 2, rung 2 of 2",
                "bracket 2 of 2, rung 1 of 1",
            ],
            [0, 9, 0],
        ),
    ],
)
def test_stages_have_names_and_begin_where_the_one_before_ends(asked, names, firsts):
    plan = made(asked, 9)
    stages = range(plan.num_stages)
    assert [plan.name(stage) for stage in stages] == names
    assert [plan.first(stage, 27) for stage in stages] == firsts
    assert [plan.rung(stage) is None for stage in stages] == [name == "retest" for name in names]


def test_the_seeds_of_a_retest_are_new():
    assert [*Schedule(Asked(retest=1, retest_seeds=2), range(3, 7)).retest_seeds] == [7, 8]
    assert len(Schedule(Asked(retest=1), range(3, 7)).retest_seeds) == schedule.RETEST_SEEDS
