"""Whether AlphaZero's tic-tac-toe can be beaten, by all lines of legal moves of its opponent.

    python tests/benchmarks/perfect.py --seeds 0 1 2 --more "--learning-rate 3e-3"

Trains the seeds side by side, and prints for each how many positions that it has lost can be
reached, moving first and second: with the greedy policy without search, and with search.
"""

import argparse
import shlex
import time

import jax
import jax.numpy as jnp
import numpy as np
import tyro

import envs
from algorithms import alphazero
from algorithms.presets import PRESETS


def positions(env):
    """All positions of pgx's tic-tac-toe as one batch of its states, and the number of each move.

    Returns boards and successors (number, 9) int, -1 where a move is illegal or the game is over.
    """
    step = jax.jit(jax.vmap(jax.vmap(env.wrapped.step, (None, 0)), (0, None)))
    level = jax.tree.map(lambda x: x[None], env.wrapped.init(jax.random.key(0)))
    levels, successors, start = [], [], 0
    while len(level.terminated):
        after = jax.tree.map(np.asarray, step(level, jnp.arange(9)))
        allowed = np.asarray(level.legal_action_mask & ~level.terminated[:, None])
        cells = after._x.board[allowed]
        _, first, number = np.unique(cells, axis=0, return_index=True, return_inverse=True)
        start += len(level.terminated)
        table = np.full(allowed.shape, -1)
        table[allowed] = start + number.ravel()
        levels.append(level)
        successors.append(table)
        level = jax.tree.map(lambda x, at=(allowed, first): x[at[0]][at[1]], after)
    return jax.tree.map(lambda *x: jnp.concatenate(x), *levels), np.concatenate(successors)


def lost(boards, successors, moves):
    """How many lost ends can be reached against these moves (number,), moving first and second."""
    ended, mover = np.asarray(boards.terminated), np.asarray(boards.current_player)
    rewards, first = np.asarray(boards.rewards), int(boards.current_player[0])
    counts = []
    for me in (first, 1 - first):
        seen, stack, count = {0}, [0], 0
        while stack:
            here = stack.pop()
            if ended[here]:
                count += rewards[here, me] < 0
                continue
            mine = mover[here] == me
            later = successors[here, [moves[here]]] if mine else successors[here]
            if mine and later[0] < 0:  # an illegal move loses
                count += 1
            new = {int(x) for x in later if x >= 0} - seen
            seen |= new
            stack += new
        counts.append(int(count))
    return counts


def players(config, env, env_params, boards):
    """greedy(state) and searched(state): moves (number,) in all positions."""
    policy = alphazero.make_policy(config, env, env_params)
    search = alphazero.make_search(config, env, env_params)
    _, env_state = env.reset_env(jax.random.key(0), env_params)

    def greedy(state):
        def act(board):
            observation = jnp.stack([board.observation.astype(jnp.float32)] * 2)
            mask = jnp.stack([board.legal_action_mask] * 2)
            return policy(state, observation, mask=mask)[0][0]

        return jax.vmap(act)(boards)

    def searched(state):
        def act(board):
            action = search(state, env_state.replace(inner=board))
            return action[board.current_player]

        return jax.vmap(act)(boards)

    return jax.jit(greedy), jax.jit(searched)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--more", default="", help="flags of alphazero.Config")
    given = parser.parse_args()
    default = alphazero.Config(**PRESETS.get("alphazero", {}).get("tic_tac_toe", {}))
    config = tyro.cli(alphazero.Config, args=shlex.split(given.more), default=default)
    env, env_params = envs.make(config.env, **dict(config.env_settings))
    train = alphazero.make_train(config, env, env_params)
    keys = jnp.stack([jax.random.key(seed) for seed in given.seeds])
    begin = time.time()
    states, metrics = jax.block_until_ready(jax.jit(jax.vmap(train))(keys))
    print(f"{train.plan.steps} moves, {len(keys)} seeds: {time.time() - begin:.0f} s", flush=True)
    for name in ("eval_return", "eval_search_return", "eval_past_return"):
        if name in metrics:
            print(name, np.round(np.asarray(metrics[name][:, -1]).mean(-1), 3))
    boards, successors = positions(env)
    greedy, searched = players(config, env, env_params, boards)
    for i, seed in enumerate(given.seeds):
        state = jax.tree.map(lambda x, i=i: x[i], states)
        found = [lost(boards, successors, np.asarray(act(state))) for act in (greedy, searched)]
        print(f"seed {seed}: lost without search {found[0]}, with {found[1]}", flush=True)


if __name__ == "__main__":
    main()
