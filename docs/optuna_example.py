"""Optuna looks for a learning rate and an entropy bonus, and gives up what does not look good.

    pip install optuna && python docs/optuna_example.py

A trial is a short run of PPO with four seeds. A hook tells Optuna how it goes at every point of the
learning curve, and stops the run when Optuna says so. Floats are no part of a compiled program, so
that trials after the first take theirs from jax's compilation cache.
"""

import optuna

from algorithms import launch, ppo


def objective(trial: optuna.Trial) -> float:
    config = ppo.Config(
        env="CartPole-v1",
        total_timesteps=50_000,
        num_evals=10,
        learning_rate=trial.suggest_float("learning_rate", 1e-5, 1e-1, log=True),
        ent_coef=trial.suggest_float("ent_coef", 0.0, 0.05),
    )

    def prune(point):
        trial.report(-float(point.metrics["eval_return"].mean()), point.index)
        if trial.should_prune():
            raise launch.Stop("pruned")

    result = launch.run(ppo, config, num_seeds=4, hooks=[prune], save=False)
    if result.stopped == "pruned":
        raise optuna.TrialPruned
    if result.interrupted:  # Ctrl-C ends the study, too
        raise KeyboardInterrupt
    return result.objective


if __name__ == "__main__":
    study = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_startup_trials=3))
    study.optimize(objective, n_trials=15)
    pruned = sum(trial.state == optuna.trial.TrialState.PRUNED for trial in study.trials)
    print(f"{len(study.trials)} trials, {pruned} of them pruned")
    print(f"return {-study.best_value:.1f} with {study.best_params}")
