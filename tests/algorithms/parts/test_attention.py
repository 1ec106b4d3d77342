"""The gated transformer against plain loops, and the steps that it may see."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import parts
from algorithms.parts import attention

SIZE, WINDOW = 8, 3


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def normalized(x):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-6)


def gate(params, x, y):
    """Parisotto et al. 2020, equations 6 to 8."""
    w, b, u = params["new"]["kernel"], params["new"]["bias"], params["old"]["kernel"]
    w, b, u = np.split(w, 3, 1), np.split(b, 3), np.split(u, 2, 1)
    r = sigmoid(y @ w[0] + b[0] + x @ u[0])
    z = sigmoid(y @ w[1] + b[1] + x @ u[1] - 2.0)
    h = np.tanh(y @ w[2] + b[2] + (r * x) @ params["reset"]["kernel"])
    return (1 - z) * x + z * h


def dense(params, x):
    return x @ params["kernel"] + params["bias"]


def block(params, x, seen):
    """The output of a layer for x, whose last steps had the normalised inputs `seen`, the own one
    last: Dai et al. 2019, section 3.3."""
    found, size = [], SIZE // 4
    for head in range(4):
        part = slice(head * size, (head + 1) * size)
        query = (seen[-1] @ params["query"])[part]
        scores = []
        for j, other in enumerate(seen):
            distance = len(seen) - 1 - j
            angles = distance * 10_000.0 ** (-np.arange(0, SIZE, 2) / SIZE)
            wave = np.concatenate([np.sin(angles), np.cos(angles)])
            content = (query + params["of_content"][part]) @ (other @ params["key"])[part]
            position = (query + params["of_position"][part]) @ (wave @ params["position"])[part]
            scores.append((content + position) / np.sqrt(size))
        weights = np.exp(scores) / np.exp(scores).sum()
        found.append(sum(w * (y @ params["value"])[part] for w, y in zip(weights, seen)))
    attended = dense(params["attended"], np.concatenate(found))
    y = gate(params["first_gate"], x, np.maximum(attended, 0))
    wide = np.maximum(dense(params["wide"], normalized(y)), 0)
    return gate(params["second_gate"], y, np.maximum(dense(params["narrow"], wide), 0))


def network(layers):
    return attention.Transformer(SIZE, layers, WINDOW)


def start(layers, *axes):
    zeros = lambda *shape: jnp.zeros((*axes, *shape))
    return parts.Memory(zeros(SIZE), attention.Window(zeros(layers, WINDOW, SIZE), zeros()))


def random_params(net, memory, x, done, seed=0):
    """Parameters that are none of them zero."""
    shapes = jax.eval_shape(net.init, jax.random.key(0), memory, x, done)
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32) / 2, shapes)


def test_layers_are_plain_loops_over_the_last_steps_of_an_episode():
    layers, steps = 2, 14
    rng, net = np.random.default_rng(layers), network(layers)
    x = rng.normal(size=(steps, 2, SIZE)).astype(np.float32)
    done = rng.random((steps, 2)) < 0.2
    done[[2, 9], 0] = True
    memory = start(layers, 2)
    params = random_params(net, memory, x, done)
    found = jax.jit(net.apply)(params, memory, x, done)
    plain = jax.tree.map(np.float64, params["params"])
    for i in range(2):
        kept = [[] for _ in range(layers)]
        for t in range(steps):
            y = x[t, i].astype(np.float64)
            for layer in range(layers):
                kept[layer].append(normalized(y))
                seen = kept[layer][-1 - WINDOW :]
                y = block(plain[f"blocks_{layer}"], y, seen)
            np.testing.assert_allclose(found.hidden[t, i], y, rtol=1e-3, atol=1e-4)
            number = min(len(kept[0]), WINDOW)
            assert found.cell.age[t, i] == number
            for layer in range(layers):
                inputs = found.cell.inputs[t, i, layer]
                np.testing.assert_allclose(inputs[-number:], kept[layer][-number:], 1e-3, 1e-4)
                np.testing.assert_array_equal(inputs[: WINDOW - number], 0.0)
            kept = [[] for _ in range(layers)] if done[t, i] else kept


def test_the_second_half_of_a_rollout_continues_from_the_window_after_the_first():
    rng, net = np.random.default_rng(0), network(2)
    x = rng.normal(size=(12, 3, SIZE)).astype(np.float32)
    done = rng.random((12, 3)) < 0.15
    done[5] = True, False, False
    memory = start(2, 3)
    params = random_params(net, memory, x, done)
    apply = jax.jit(net.apply)
    whole = apply(params, memory, x, done)
    first = apply(params, memory, x[:6], done[:6])
    middle = parts.forget(jax.tree.map(lambda x: x[-1], first), done[5])
    second = apply(params, middle, x[6:], done[6:])
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(one[6:], other, rtol=1e-3, atol=1e-4)


def test_inputs_of_other_episodes_and_older_ones_have_no_influence():
    rng, net = np.random.default_rng(1), network(1)
    x = rng.normal(size=(9, 1, SIZE)).astype(np.float32)
    done = np.zeros((9, 1), bool)
    done[3] = True
    memory = start(1, 1)
    params = random_params(net, memory, x, done)
    output = lambda x: net.apply(params, memory, x, done).hidden.sum((1, 2))
    seen = np.abs(jax.jit(jax.jacobian(output))(x)).sum((2, 3)) > 1e-6
    expected = np.zeros((9, 9), bool)
    for t in range(9):
        first = max(t - WINDOW, 0 if t < 4 else 4)
        expected[t, first : t + 1] = True
    np.testing.assert_array_equal(seen, expected)


def test_agents_are_a_further_axis():
    rng, net = np.random.default_rng(2), network(2)
    x = rng.normal(size=(5, 3, 2, SIZE)).astype(np.float32)
    done = rng.random((5, 3)) < 0.3
    memory = start(2, 3, 2)
    params = random_params(net, memory, x, done)
    apply = jax.jit(net.apply)
    found = apply(params, memory, x, done)
    for agent in range(2):
        one = apply(params, start(2, 3), x[:, :, agent], done)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(one), strict=True):
            np.testing.assert_allclose(a[:, :, agent], b, rtol=1e-4, atol=1e-5)
    step = jax.jit(functools.partial(net.apply, method="step"))(params, memory, x[0])
    np.testing.assert_allclose(step.hidden, found.hidden[0], rtol=1e-4, atol=1e-5)


def test_a_layer_starts_close_to_its_input():
    """All matrices zero: z = sigmoid(-2), and h = 0."""
    net, x = network(1), np.ones((1, 1, SIZE), np.float32)
    memory, done = start(1, 1), np.zeros((1, 1), bool)
    params = jax.tree.map(np.zeros_like, random_params(net, memory, x, done))
    found = jax.jit(net.apply)(params, memory, x, done).hidden
    np.testing.assert_allclose(found, (1 - sigmoid(-2.0)) ** 2 * x, rtol=1e-5)
