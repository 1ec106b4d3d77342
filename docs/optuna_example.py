"""Optuna looks for settings of PPO, eight at a time, and gives up what does not look good.

    pip install optuna && python docs/optuna_example.py

Each batch of Optuna's trials, with four seeds each, trains side by side in one program. A hook
reports every trial at every point of the learning curve, and ends the batch as soon as Optuna would
prune all of it. A trial that Optuna prunes alone goes on to the end, because its program does:
`launch.sweep(..., halving=3)` stops trials one by one.
"""

import optuna
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from algorithms import launch, ppo

CONFIG = ppo.Config(env="CartPole-v1", total_timesteps=50_000, num_evals=10)
SPACE = {
    "learning_rate": FloatDistribution(1e-5, 1e-1, log=True),
    "ent_coef": FloatDistribution(0.0, 0.05),
}
TRIALS, BATCH, SEEDS = 40, 8, 4


def train(study: optuna.Study) -> None:
    """Trains a batch of trials and tells the study what came of them."""
    trials = [study.ask(SPACE) for _ in range(BATCH)]
    pruned = set()

    def prune(point):
        returns = point.metrics["eval_return"].mean(1)
        for trial in trials:
            mine = [i for i, setting in enumerate(point.settings) if setting == trial.params]
            if mine:  # else it trains in another chunk
                trial.report(float(returns[mine].mean()), point.index)
            if trial.should_prune():
                pruned.add(trial.number)
        if len(pruned) == len(trials):
            raise launch.Stop("pruned")

    settings = [trial.params for trial in trials]
    given = {"num_seeds": SEEDS, "hooks": [prune], "save": False}
    try:
        swept = launch.sweep(ppo, CONFIG, settings=settings, **given)
    except BaseException:  # Ctrl-C and SIGTERM, too: a return on the way there is no result
        for trial in trials:
            study.tell(trial, state=TrialState.FAIL)
        raise
    for trial in trials:
        if trial.number in pruned:
            study.tell(trial, state=TrialState.PRUNED)
        elif swept.of(trial.params).broken:
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, swept.of(trial.params).score())


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize",
        # A constant liar keeps the trials of a batch apart.
        sampler=optuna.samplers.TPESampler(constant_liar=True, seed=0),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=BATCH),
    )
    while len(study.trials) < TRIALS:
        train(study)
        best = f"return {study.best_value:.1f} with {study.best_params}"
        print(f"{len(study.trials)} trials, the best: {best}", flush=True)
    pruned = sum(trial.state == TrialState.PRUNED for trial in study.trials)
    print(f"{pruned} of {len(study.trials)} trials were pruned")
