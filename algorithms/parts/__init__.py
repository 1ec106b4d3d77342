"""Code that every algorithm needs and that decides nothing about learning.

All correct implementations of a part give the same distribution of results. Code that decides what
an agent learns stands in the algorithm's file.
"""

from algorithms.parts.actions import Categorical, Gaussian, TanhGaussian, log_tanh_slope
from algorithms.parts.agents import fold, fold_rollout, mask_of_agents, unfold
from algorithms.parts.blocks import BatchNorm, BlockDense, NormedLayers, RMSNorm
from algorithms.parts.boards import Symmetries, symmetries
from algorithms.parts.capacity import device_capacity
from algorithms.parts.cells import (
    CELLS,
    Cells,
    Recurrent,
    check_cell,
    fresh_memory,
    last_step,
    one_step,
    with_last_step,
)
from algorithms.parts.checking import check
from algorithms.parts.checks import (
    check_choices,
    check_divides,
    check_game,
    check_minibatches,
    check_samples,
    check_sizes,
)
from algorithms.parts.fields import (
    bounds,
    check_kind,
    check_reals,
    real,
    static,
    value_like,
    with_plain_values,
)
from algorithms.parts.laprop import clip_by_tensor, scale_by_laprop
from algorithms.parts.layers import (
    CONV_LAYERS,
    Convolutions,
    LayerNorm,
    Torso,
    Tower,
    activation,
    cosines,
    orthogonal,
    scaled,
)
from algorithms.parts.levels import (
    EpisodeReturns,
    LevelBuffer,
    Visits,
    visit_of_steps,
    warn_of_one_level,
)
from algorithms.parts.loops import branch, scan
from algorithms.parts.metrics import explained_variance, mean
from algorithms.parts.muon import scale_by_muon
from algorithms.parts.optimizer import global_norm, on_one_vector
from algorithms.parts.orders import permutations
from algorithms.parts.products import Dense
from algorithms.parts.reads import asked_for, changed
from algorithms.parts.records import Records, fresh_windows, records, write_back
from algorithms.parts.recurrence import Memory, forget
from algorithms.parts.replay import (
    Replay,
    ReplayBuffer,
    Transition,
    check_fits,
    check_holds,
    check_replay,
    check_rounds,
)
from algorithms.parts.rounds import Rounds, keep_if
from algorithms.parts.shards import any_over_shards, mean_over_shards, sum_over_shards
from algorithms.parts.spaces import ActionSpace, EpsilonNoise, epsilon_noise, flat_draw
from algorithms.parts.split import Split
from algorithms.parts.statistics import ReturnStatistics, RewardScale, RunningStatistics
from algorithms.parts.training import (
    Average,
    Last,
    Learner,
    Maximum,
    Plan,
    first_state,
    num_points,
    num_updates,
    program,
    resolve,
    with_environment,
)
from algorithms.parts.twohot import Bins, symexp, symlog
from envs.interface import is_bounded
from envs.shaping import earns_after_leaving
from envs.usual_jax import usual_jax, with_usual_jax
