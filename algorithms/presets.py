"""Settings known to work, or marked as not: {algorithm: {preset: {field: value}}}.

A preset is named after its environment, or after whose settings it has, and sets `env` to its name
unless it gives another. An empty preset means that the defaults work. docs/tuning.md has the
measurements, docs/coming-from.md those of `purejaxrl`.
"""

import math
from typing import Any

# Tasks that need a memory: a bit shown at the first of 60 steps, and CartPole without velocities.
# With forget_bias, a memory initially keeps what it has seen. The chain's presets pass everything
# through the memory, because the default network fails on one seed in twenty. CartPole's LSTM and
# GRU keep the default network, and fall less often with it. The chain pays once an episode, so
# gradients are few and the learning rate is large.
REMEMBER = {
    "skip": False,
    "normalize_over": "minibatch",
    "hidden_sizes": (64,),
    "forget_bias": 3.0,
}
CHAIN = {
    "env": "MemoryChain-bsuite",
    "env_settings": (("memory_length", 60),),
    "total_timesteps": 400_000,
    "num_envs": 8,
    "learning_rate": 2.5e-3,
    **REMEMBER,
}
POSITIONS = {
    "env": "CartPole-v1",
    "env_settings": (("observe", (0, 2)),),
    "num_envs": 8,
    "adam_eps": 1e-3,
    "forget_bias": 3.0,
}

# PQN on MinAtar. Layers are dense: a step with convolutions takes several times as long.
MINATAR = {
    "total_timesteps": 10_000_000,
    "num_envs": 128,
    "num_steps": 32,
    "update_epochs": 2,
    "num_minibatches": 16,
    "learning_rate": 2e-3,
    "gamma": 0.99,
    "reward_scale": 1.0,
    "eps_end": 0.05,
    "exploration_fraction": 0.1,
    "hidden_sizes": (128, 128),
    "conv_layers": "none",
}

# Random actions that last several steps find MountainCar's goal. Velocities are far smaller than
# positions, so inputs are normalised.
LASTING = {
    "duration_exponent": 2.0,
    "eps_end": 0.02,
    "activation": "swish",
    "normalize_obs": True,
}

# Values from a replay buffer on the same games. Rewards are rare, so gradients are small: with the
# defaults' epsilon Adam's steps are several times shorter than here (docs/tuning.md).
BITS = {
    "buffer_dtype": "bool",
    "batch_size": 64,
    "adam_eps": 1e-5,
    "hidden_sizes": (128, 128),
    "conv_layers": "none",
}

# The usual benchmark of dm_control: 100,000 frames, two for each action.
SUITE = {"env_settings": (("action_repeat", 2),), "total_timesteps": 50_000}
# Small networks are enough, and need a fifteenth of the multiplications.
SMALL = {"hidden_sizes": (64, 64), "critic_hidden_sizes": (64, 64)}
# Random actions find the goal if each is held for four steps: 12,500 actions are 50,000 steps.
HELD_CAR = {"env_settings": (("action_repeat", 4),), "total_timesteps": 12_500, **SMALL}

# REDQ and DroQ on two cores: a tenth of SAC's steps, and 20 gradient steps for each. A run learns
# after one episode. The step size is SAC's default, 3 times the papers': the actor takes only 1,720
# steps.
FEW_STEPS = {
    "env": "Pendulum-v1",
    "total_timesteps": 1_920,
    "updates_per_step": 20,
    "learning_starts": 200,
    "actor_value": "mean",
    "policy_every": 20,
    **SMALL,
}

# FlashSAC on two cores: a quarter of its width, four environments, half a gradient step for each
# transition. The step size is 3 times the paper's, for runs of 10,000 gradient steps.
SMALL_FLASH = {
    "num_envs": 4,
    "updates_per_step": 2,
    "buffer_size": 100_000,
    "batch_size": 256,
    "learning_starts": 1_000,
    "learning_rate": 1e-3,
    "hidden_size": 32,
    "critic_hidden_size": 64,
}

# World models small enough for two cores, which replay each step 128 times.
SMALL_WORLD = {
    "total_timesteps": 20_000,
    "num_envs": 4,
    "train_every": 1,
    "updates_per_step": 2,
    "buffer_size": 20_000,
    "batch_size": 8,
    "sequence_length": 32,
    "learning_rate": 3e-4,
    "warmup_steps": 200.0,
    "hidden_size": 32,
    "memory_size": 128,
    "latents": 8,
    "classes": 8,
    "layers": 2,
    "num_bins": 63,
}
# The sizes of the authors' code. Both are for an accelerator.
SIZE1M = {
    "env": "Breakout-MinAtar",
    "total_timesteps": 1_000_000,
    "buffer_size": 1_000_000,
    "buffer_dtype": "bool",
    "reconstruction": "bits",
}
SIZE12M = {
    "env": "playground/CheetahRun",
    "total_timesteps": 500_000,
    "train_every": 1,
    "updates_per_step": 8,
    "buffer_size": 500_000,
    "hidden_size": 256,
    "memory_size": 2048,
    "classes": 16,
}

# Observations are mostly a map of zeros and ones, so they are not normalised.
CRAFTAX = {
    "total_timesteps": 2_000_000,
    "num_envs": 256,
    "num_steps": 32,
    "num_minibatches": 8,
    "adam_eps": 1e-5,
    "gae_lambda": 0.8,
    "max_grad_norm": 1.0,
    "hidden_sizes": (512, 512, 512),
    "normalize_obs": False,
    "normalize_reward": False,
}

# Four presets have the settings of published tables. They are for a GPU, and have not been tried on
# one yet. Where a suite has many tasks, their environment is an example:
# `--preset dm_control --env playground/WalkerRun`.
#
# Those of brax's PPO, in playground's dm_control_suite_params.py. A rollout here is 16 unrolls of
# 30 steps. Brax has networks of other sizes for actor and critic, and rewards times 10 in place of
# normalised ones.
PPO_DM_CONTROL = {
    "env": "playground/CheetahRun",
    "total_timesteps": 60_000_000,
    "num_envs": 2048,
    "num_steps": 480,
    "update_epochs": 16,
    "num_minibatches": 32,
    "learning_rate": 1e-3,
    "anneal_lr": False,
    "gamma": 0.995,
    "clip_eps": 0.3,
    "ent_coef": 0.01,
    "hidden_sizes": (256, 256, 256),
    "activation": "swish",
    "num_evals": 10,
}
# What PureJaxRL's ppo.py and CleanRL's have. Their values end at a time limit, too.
PPO_OF_OTHERS = {
    "env": "CartPole-v1",
    "env_settings": (("limit_terminates", True),),
    "learning_rate": 2.5e-4,
    "adam_eps": 1e-5,
    "clip_vloss": True,
    "normalize_obs": False,
    "normalize_reward": False,
}
# PureJaxRL's dqn.py: its target moves every 500 environment steps.
DQN_OF_PUREJAXRL = {
    "env": "CartPole-v1",
    "env_settings": (("limit_terminates", True),),
    "num_envs": 10,
    "buffer_size": 10_000,
    "learning_rate": 2.5e-4,
    "anneal_lr": False,
    "adam_eps": 1e-8,
    "gamma": 0.99,
    "n_step": 1,
    "double": False,
    "target_every": 50,
    "eps_end": 0.05,
    "exploration_fraction": 0.5,
    "max_grad_norm": math.inf,
    "hidden_sizes": (120, 84),
}
# CleanRL's dqn.py has one environment, and bootstraps at time limits.
DQN_OF_CLEANRL = DQN_OF_PUREJAXRL | {"env_settings": (), "num_envs": 1, "train_every": 10}
# Those of REPPO's repository. There bins are equidistant over [0, 150]; here they are equidistant
# in symlog, over +-150.
REPPO_DM_CONTROL = {
    "env": "playground/CheetahRun",
    "total_timesteps": 50_000_000,
    "num_envs": 1024,
    "num_steps": 128,
    "update_epochs": 8,
    "num_minibatches": 64,
    "learning_rate": 3e-4,
    "anneal_lr": False,
    "num_bins": 151,
    "symlog_max": 5.017,  # log(1 + 150)
    "normalize_reward": False,
    "hidden_sizes": (512, 512),
    "critic_hidden_sizes": (512, 512, 512),
    "num_evals": 10,
}
# Those of Craftax_Baselines, whose ppo_rnn has ReLU and two layers after its GRU.
CRAFTAX_FULL = {
    "total_timesteps": 1_000_000_000,
    "num_envs": 1024,
    "num_steps": 64,
    "num_minibatches": 8,
    "learning_rate": 2e-4,
    "adam_eps": 1e-5,
    "gae_lambda": 0.8,
    "max_grad_norm": 1.0,
    "clip_vloss": True,
    "normalize_obs": False,
    "normalize_reward": False,
}
# Those of purejaxql's pqn_minatar.yaml. Its values also end at time limits; here they bootstrap.
PQN_MINATAR = {
    "env": "Breakout-MinAtar",
    "total_timesteps": 10_000_000,
    "num_envs": 128,
    "num_steps": 32,
    "update_epochs": 2,
    "num_minibatches": 32,
    "learning_rate": 5e-4,
    "adam_eps": 1e-8,
    "gamma": 0.99,
    "reward_scale": 1.0,
    "eps_end": 0.05,
    "exploration_fraction": 0.1,
    "hidden_sizes": (128,),
}

# Without a limit, a policy that ignores masks may never end an evaluation.
GAME_2048 = {"env_settings": (("max_steps", 4000),)}

# Three marines against three scripted ones. An episode is won or lost at its end, so each policy
# collects many steps. Settings follow JaxMARL's. docs/several-agents.md has the share of battles
# that each file wins, docs/tuning.md the settings that IQL needs.
SMAX_3M = {
    "env": "jaxmarl/HeuristicEnemySMAX",
    "env_settings": (("scenario", "3m"),),
    "total_timesteps": 2_000_000,
    "num_envs": 64,
}
SMAX_PPO = {
    **SMAX_3M,
    "num_steps": 64,
    "share_params": True,
    "learning_rate": 2e-3,
    "critic_learning_rate": 2e-3,
    "activation": "relu",
}


# Poker for two, by self-play. Policies that adapt to one another cycle, unless an entropy bonus
# holds them. The bonus is in chips, because advantages are not standardised. A larger one settles
# sooner, but further from an equilibrium. With a start_window of 1 every hand is dealt anew.
POKER = {
    "env_settings": (("start_window", 1),),
    "share_params": True,
    "normalize_advantage": False,
    "gamma": 1.0,
}


def kitchen(weight: float) -> dict[str, Any]:
    """Agents learn to serve soups from JaxMARL's shaped rewards for onions and plates, which fall
    to 0 over the first half of the run. Settings follow JaxMARL's. IPPO serves twelve soups an
    episode, VDN thirteen."""
    shaped = ("shaped", weight), ("shaped_steps", 2_500_000)
    return {
        "env": "jaxmarl/overcooked",
        "env_settings": (("layout", "cramped_room"), *shaped),
        "total_timesteps": 5_000_000,
        "conv_layers": "none",
    }


PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "ppo": {
        "CartPole-v1": {},
        "Acrobot-v1": {},
        # With the defaults some seeds swing up late. A nearer horizon and more passes help.
        "Pendulum-v1": {
            "num_envs": 16,
            "update_epochs": 10,
            "num_minibatches": 16,
            "learning_rate": 5e-4,
            "gamma": 0.95,
            "ent_coef": 0.0,
        },
        # The defaults reach the goal too, but with more fuel.
        "MountainCarContinuous-v0": {
            "num_envs": 16,
            "num_steps": 256,
            "update_epochs": 10,
            "num_minibatches": 16,
            "learning_rate": 5e-4,
            "gamma": 0.9999,
        },
        # Images are bits and rewards are 0 or 1, so neither is normalised.
        "Breakout-MinAtar": {
            "total_timesteps": 5_000_000,
            "num_envs": 64,
            "num_minibatches": 8,
            "learning_rate": 2.5e-3,
            "adam_eps": 1e-5,
            "hidden_sizes": (64,),
            "activation": "relu",
            "normalize_obs": False,
            "normalize_reward": False,
        },
        # Outside libraries. Grids of five cells a side are too small for convolutions. Without a
        # larger entropy bonus, policies find the key and the door late.
        "navix/DoorKey-5x5": {
            "total_timesteps": 1_000_000,
            "num_envs": 32,
            "num_minibatches": 8,
            "ent_coef": 0.03,
            "conv_layers": "none",
        },
        "xminigrid/MiniGrid-DoorKey-5x5": {
            "total_timesteps": 1_000_000,
            "num_envs": 16,
            "ent_coef": 0.03,
            "conv_layers": "none",
        },
        "jumanji/Game2048": {"num_envs": 16, "conv_layers": "none", **GAME_2048},
        "brax/inverted_pendulum": {"num_envs": 16},
        # Standing still pays 1 a step, so the horizon is far, with many samples and passes.
        "brax/hopper": {
            "env_settings": (("backend", "spring"),),
            "total_timesteps": 5_000_000,
            "num_envs": 256,
            "num_steps": 32,
            "update_epochs": 8,
            "num_minibatches": 16,
            "gamma": 0.997,
            "gae_lambda": 0.97,
            "ent_coef": 0.003,
        },
        "playground/CartpoleBalance": {"total_timesteps": 1_000_000, "num_envs": 16},
        "playground/CartpoleSwingup": {
            "env_settings": (("action_repeat", 2),),
            "total_timesteps": 2_000_000,
            "num_envs": 16,
        },
        "playground/PendulumSwingup": {
            "total_timesteps": 5_000_000,
            "num_envs": 256,
            "num_steps": 64,
            "num_minibatches": 16,
            "gamma": 0.995,
        },
        "playground/CheetahRun": {
            "total_timesteps": 1_000_000,
            "num_envs": 32,
            "num_minibatches": 8,
            "num_evals": 5,
        },
        "craftax/Classic-Symbolic": CRAFTAX,
        "craftax/Symbolic": {**CRAFTAX_FULL, "hidden_sizes": (512, 512, 512)},
        "dm_control": PPO_DM_CONTROL,
        "purejaxrl": PPO_OF_OTHERS,
        "cleanrl": PPO_OF_OTHERS,
    },
    "ippo": {
        # Both sides change while they learn, so each update takes many samples.
        "Pursuit-v0": {
            "total_timesteps": 4_000_000,
            "num_envs": 32,
            "ent_coef": 0.0,
            "hidden_sizes": (128, 128),
            "activation": "relu",
            "normalize_obs": True,
            "normalize_reward": True,
        },
        # The agents are alike, so one shared network replaces four.
        "MultiNavigator-v0": {
            "total_timesteps": 1_000_000,
            "share_params": True,
            "normalize_reward": True,
        },
        # To learn a language, the critic has to see both agents' observations.
        "MPE_simple_speaker_listener_v4": {
            "env": "jaxmarl/MPE_simple_speaker_listener_v4",
            "total_timesteps": 5_000_000,
            "num_envs": 32,
            "central_critic": True,
            "gamma": 0.95,
            "normalize_reward": True,
        },
        "SMAX-3m": {**SMAX_PPO, "hidden_sizes": (128, 128)},
        "overcooked-cramped_room": {
            **kitchen(1.0),
            "num_envs": 32,
            "share_params": True,
        },
        "kuhn_poker": {
            **POKER,
            "env": "pgx/kuhn_poker",
            "total_timesteps": 20_480_000,
            "num_envs": 256,
            "num_steps": 16,
            "central_critic": True,
            "agent_ids": True,
            "update_epochs": 1,
            "critic_epochs": 2,
            "num_minibatches": 2,
            "learning_rate": 8e-4,
            "critic_learning_rate": 1e-2,
            "average_actor": True,
            "gae_lambda": 1.0,
            "ent_coef": 0.06,
            "hidden_sizes": (32, 32),
        },
        "leduc_holdem": {
            **POKER,
            "env": "pgx/leduc_holdem",
            "total_timesteps": 10_000_000,
            "num_envs": 64,
            "num_steps": 32,
            "num_minibatches": 2,
            "critic_learning_rate": 3e-3,
            "gae_lambda": 0.9,
            "ent_coef": 0.2,
        },
    },
    "ippo_rnn": {
        # With a clip_eps of 0.2 policies win no more than eight battles of ten.
        "SMAX-3m": {
            **SMAX_PPO,
            "learning_rate": 4e-3,
            "critic_learning_rate": 4e-3,
            "clip_eps": 0.05,
        },
        # The last day is a rule of the riddle. As a truncation it would bootstrap from days after
        # the end, whose values keep growing, and nobody would tell.
        "switch_riddle": {
            "env": "jaxmarl/switch_riddle",
            "env_settings": (("limit_terminates", True),),
            "total_timesteps": 300_000,
            "num_envs": 64,
            "num_steps": 24,
            "share_params": True,
            "agent_ids": True,
            "learning_rate": 2.5e-3,
            "critic_learning_rate": 2.5e-3,
            "memory_size": 32,
        },
    },
    "ppo_vtrace": {
        "CartPole-v1": {},
        "MultiNavigator-v0": {"num_envs": 16},  # of four agents each
    },
    # The ranges are so wide that policies trained with default parameters fail in a part of them.
    "ppo_plr": {
        "CartPole-v1": {
            "env_settings": (("randomize", "length:uniform:0.25:4/gravity:log:5:40"),),
        },
        "Acrobot-v1": {
            "env_settings": (
                ("randomize", "link_length_1:uniform:0.5:2/link_mass_2:uniform:0.5:3"),
            ),
        },
        "Pendulum-v1": {
            "env_settings": (("randomize", "l:uniform:0.5:1.5/m:uniform:0.5:1.5"),),
            "update_epochs": 10,
            "num_minibatches": 16,
            "learning_rate": 5e-4,
            "gamma": 0.95,
            "ent_coef": 0.0,
        },
        "xminigrid/MiniGrid-FourRooms": {
            "total_timesteps": 2_000_000,
            "num_envs": 32,
            "num_minibatches": 8,
            "score": "maxmc",  # the reward comes at the end
            "conv_layers": "none",
        },
    },
    "ppo_rnn": {
        "TMaze-v0": {
            "total_timesteps": 300_000,
            "num_envs": 16,
            "num_steps": 64,
            "learning_rate": 2.5e-3,
            "gae_lambda": 0.7,
            "memory_size": 32,
            "hidden_sizes": (32,),
            "forget_bias": 3.0,
        },
        "RepeatPrevious-v0": {
            "num_envs": 16,
            "num_steps": 64,
            "learning_rate": 2.5e-3,
            "gamma": 0.5,  # a card pays at once
            "gae_lambda": 0.5,
            "hidden_sizes": (64,),
        },
        # With an entropy bonus of 0.05 and without the last action, an LSTM leaves the map at once.
        "RockSample-v0": {
            "total_timesteps": 1_000_000,
            "num_envs": 64,
            "num_steps": 64,
            "gamma": 0.97,
            "ent_coef": 0.1,
            "previous_inputs": True,
            "hidden_sizes": (64,),
            "forget_bias": 1.0,
        },
        "MemoryChain-bsuite": CHAIN,
        "MemoryChain-bsuite-gru": {**CHAIN, "cell": "gru"},
        "MemoryChain-bsuite-mingru": {**CHAIN, "cell": "mingru"},
        # An LSTM falls less often with 16 environments, and a GRU with smaller steps. minGRU's
        # settings are from runs that pass everything through the memory.
        "CartPole-v1-positions": {**POSITIONS, "num_envs": 16},
        "CartPole-v1-positions-gru": {**POSITIONS, "cell": "gru", "learning_rate": 5e-4},
        "CartPole-v1-positions-mingru": {**POSITIONS, **REMEMBER, "cell": "mingru"},
        # The agent sees 7x7 cells. PPO without a memory solves this too (docs/results.md).
        "navix/DoorKey-5x5": {
            "env_settings": (("observation", "symbolic_first_person"),),
            "total_timesteps": 1_000_000,
            "num_envs": 32,
            "num_minibatches": 8,
            "adam_eps": 1e-3,
            "ent_coef": 0.03,
            "cell": "gru",
            "conv_layers": "none",
            **REMEMBER,
        },
        "craftax/Symbolic": {
            **CRAFTAX_FULL,
            "cell": "gru",
            "memory_size": 512,
            "hidden_sizes": (512,),
            "skip": False,
        },
    },
    "pqn": {
        "MinAtar": PQN_MINATAR,
        "CartPole-v1": {},
        "Acrobot-v1": {},
        "MountainCar-v0": {"eps_end": 0.3},  # a policy that still explores forgets less
        **{f"{game}-MinAtar": MINATAR for game in ("Asterix", "Breakout", "Freeway")},
        "SpaceInvaders-MinAtar": MINATAR,
        "craftax/Classic-Symbolic": {
            "total_timesteps": 2_000_000,
            "num_envs": 256,
            "num_steps": 32,
            "update_epochs": 4,
            "gamma": 0.99,
            "reward_scale": 1.0,
            "eps_end": 0.02,
            "exploration_fraction": 0.2,
            "hidden_sizes": (256, 256),
        },
    },
    "pqn_rnn": {
        # The signal pays 60 steps later. So targets are whole returns, few actions are random at
        # the end, and the memory initially keeps what it has seen.
        "MemoryChain-bsuite": {
            "env_settings": (("memory_length", 60),),
            "total_timesteps": 400_000,
            "num_envs": 32,
            "learning_rate": 3e-3,
            "gamma": 0.99,
            "q_lambda": 1.0,
            "reward_scale": 1.0,
            "eps_end": 0.02,
            "exploration_fraction": 0.2,
            "forget_bias": 3.0,
        },
        "TMaze-v0": {
            "total_timesteps": 300_000,
            "learning_rate": 2e-3,
            "gamma": 0.98,
            "q_lambda": 0.9,
            "reward_scale": 1.0,
            "eps_end": 0.05,
            "forget_bias": 3.0,
        },
        # Angles are small compared with positions.
        "CartPole-v1-positions": {
            "env": "CartPole-v1",
            "env_settings": (("observe", (0, 2)),),
            "normalize_obs": True,
        },
    },
    "r2d2": {
        "CartPole-v1-positions": {"env": "CartPole-v1", "env_settings": (("observe", (0, 2)),)},
        # Wherever a sequence of 128 steps starts, it contains a whole episode. Sequences of 64
        # steps mostly begin after the signal. Only the answer pays, and at once, so a discount near
        # 1 would only add noise.
        "MemoryChain-bsuite": {
            "env_settings": (("memory_length", 60),),
            "total_timesteps": 200_000,
            "train_every": 32,
            "burn_in": 0,
            "sequence_length": 128,
            "batch_size": 16,
            "gamma": 0.5,
            "eps_end": 0.02,
            "cell": "mingru",
            "forget_bias": 5.0,
        },
        # Only the signal of the first step has to be remembered.
        "TMaze-v0": {
            "total_timesteps": 200_000,
            "learning_rate": 2e-3,
            "gamma": 0.98,
            "eps_end": 0.05,
            "forget_bias": 3.0,
            "previous_inputs": False,
            "normalize_obs": False,
        },
    },
    "dreamer": {
        "size1m": SIZE1M,
        "size12m": SIZE12M,
        "Pendulum-v1": SMALL_WORLD,
        # Nine steps to an episode. Larger steps learn it in fewer episodes.
        "Catch-bsuite": {
            **SMALL_WORLD,
            "total_timesteps": 10_000,
            "updates_per_step": 4,
            "imagine_steps": 10,
            "learning_rate": 1e-3,
            "reconstruction": "bits",
        },
        "CartPole-v1": SMALL_WORLD,
    },
    "vdn": {
        # A hunt is longer than the ten steps that the defaults look ahead. With the defaults,
        # greedy policies get stuck where random actions would go on.
        "Hunt-v0": {"gamma": 0.99, "q_lambda": 0.9},
        "MPE_simple_spread_v3": {
            "env": "jaxmarl/MPE_simple_spread_v3",
            "total_timesteps": 2_000_000,
        },
        # Prisoners have six days, and leave one bit to those who come later. The last day is a rule
        # of the riddle: as a truncation it would bootstrap from values that keep growing. A GRU
        # learns a rollout step by step, so rollouts are short and environments many.
        "switch_riddle": {
            "env": "jaxmarl/switch_riddle",
            "env_settings": (("limit_terminates", True),),
            "num_envs": 64,
            "num_steps": 12,
            "cell": "gru",
            "previous_inputs": True,
            "num_minibatches": 4,
            "gamma": 0.99,
            "q_lambda": 0.8,
            "reward_scale": 1.0,
        },
        "SMAX-3m": {
            **SMAX_3M,
            "num_steps": 32,
            "cell": "gru",
            "learning_rate": 1e-3,
            "gamma": 0.99,
            "q_lambda": 0.85,
            "reward_scale": 1.0,
            "eps_end": 0.02,
            "exploration_fraction": 0.2,
        },
        "overcooked-cramped_room": {
            **kitchen(2.0),  # a team gets the mean over its agents
            "num_envs": 64,
            "num_steps": 16,
            "learning_rate": 1e-3,
            "gamma": 0.99,
            "q_lambda": 0.5,
            "reward_scale": 0.1,
            "exploration_fraction": 0.2,
            "hidden_sizes": (128, 128),
        },
    },
    "reinforce": {
        "CartPole-v1": {},
        "Acrobot-v1": {},
    },
    "sac": {
        "Pendulum-v1": {"total_timesteps": 20_000, **SMALL},
        # Five critics, where the paper has ten.
        "Pendulum-v1-redq": {**FEW_STEPS, "num_critics": 5, "target_critics": 2},
        "Pendulum-v1-droq": {**FEW_STEPS, "layer_norm": True, "dropout": True},
        "MountainCarContinuous-v0": {**HELD_CAR, "reward_scale": 0.1, "target_entropy": -0.5},
        "playground/CartpoleSwingup": SUITE,
        "playground/PendulumSwingup": SUITE,
        "playground/CheetahRun": SUITE,
        # Settings of brax's notebook for its own SAC, except for the size of the networks.
        "brax/hopper": {
            "env_settings": (("backend", "spring"),),
            "total_timesteps": 500_000,
            "num_envs": 128,
            "updates_per_step": 64,
            "buffer_size": 500_000,
            "batch_size": 512,
            "learning_starts": 8_192,
            "learning_rate": 6e-4,
            "gamma": 0.997,
            "reward_scale": 30.0,
            "target_entropy": -0.5,
            "normalize_obs": True,
            **SMALL,
        },
    },
    "sac_discrete": {
        "CartPole-v1": {},
        # Each torque is held for three steps. Random torques chosen anew at every step do not swing
        # the pendulum up, and seeds that see no end before their values settle never reach it.
        "Acrobot-v1": {"env_settings": (("action_repeat", 3),), "total_timesteps": 160_000},
    },
    "td3": {
        "Pendulum-v1": {"total_timesteps": 20_000, **SMALL},
        "MountainCarContinuous-v0": {  # noise that lasts helps to find the goal
            **HELD_CAR,
            "reward_scale": 0.1,
            "exploration_noise": 0.5,
            "noise_correlation": 0.9,
            "anneal_lr": True,  # without it one seed in twenty pushes more than it must
        },
        "playground/CartpoleSwingup": SUITE,
    },
    "reppo": {
        # A near horizon, as in PPO's preset.
        "Pendulum-v1": {
            "num_envs": 8,
            "num_steps": 128,
            "learning_rate": 4e-3,
            "max_grad_norm": 0.2,
            "gamma": 0.95,
            "td_lambda": 0.97,
            "num_evals": 10,  # 50 updates
        },
        "MountainCarContinuous-v0": {
            "env_settings": (("action_repeat", 4),),  # as HELD_CAR
            "total_timesteps": 12_500,
        },
        "playground/CartpoleSwingup": {
            "env_settings": (("action_repeat", 2),),
            "total_timesteps": 250_000,
            "kl_bound": 0.03,
            "num_evals": 10,
        },
        "playground/CheetahRun": {"total_timesteps": 1_000_000, "num_evals": 5},
        "dm_control": REPPO_DM_CONTROL,
        # A far horizon, as in PPO's preset, long rollouts and traces, much noise (docs/tuning.md).
        "brax/hopper": {
            "env_settings": (("backend", "spring"),),
            "total_timesteps": 983_040,  # 120 updates
            "num_envs": 32,
            "num_steps": 256,
            "num_minibatches": 32,
            "learning_rate": 3e-3,
            "gamma": 0.9965,
            "td_lambda": 0.99,
            "kl_bound": 0.007,
            "target_entropy": 0.45,
            "symlog_max": 2.5,
            "aux_coef": 0.5,
            "max_grad_norm": 1.0,
            "hidden_sizes": (128, 128),
            "critic_hidden_sizes": (128, 128, 128),
            "num_evals": 10,
        },
    },
    "reppo_discrete": {"CartPole-v1": {}, "Acrobot-v1": {}, "MountainCar-v0": {}},
    "crossq": {"Pendulum-v1": {"total_timesteps": 20_000, **SMALL}},
    "flashsac": {
        "Pendulum-v1": {"total_timesteps": 20_000, **SMALL_FLASH},
        # One random episode in four finds the goal. A policy that has not seen it learns to rest,
        # so that 16 episodes come before it learns.
        "MountainCarContinuous-v0": {
            **SMALL_FLASH,
            "env_settings": (("action_repeat", 4),),
            "total_timesteps": 12_800,
            "learning_starts": 4_000,
        },
        "playground/CartpoleSwingup": {**SUITE, "total_timesteps": 50_240, **SMALL_FLASH},
        # The published sizes: those of the defaults, with a larger buffer.
        "dm_control": {
            "env": "playground/CheetahRun",
            "total_timesteps": 50_000_000,
            "buffer_size": 10_000_000,
            "num_evals": 10,
        },
    },
    "ddpg": {"Pendulum-v1": {"total_timesteps": 30_000, **SMALL}},
    "dqn": {
        "CartPole-v1": {},
        "Acrobot-v1": {},
        "MountainCar-v0": LASTING,
        "Breakout-MinAtar": BITS,
        "purejaxrl": DQN_OF_PUREJAXRL,
        "cleanrl": DQN_OF_CLEANRL,
    },
    "c51": {
        "CartPole-v1": {},
        "Acrobot-v1": {},
        "MountainCar-v0": LASTING,
        "Breakout-MinAtar": {**BITS, "v_min": 0.0, "v_max": 20.0},
    },
    "qrdqn": {
        "CartPole-v1": {},
        "Acrobot-v1": {},
        "MountainCar-v0": LASTING,
        "Breakout-MinAtar": {**BITS, "n_step": 3},
    },
    "iqn": {
        "CartPole-v1": {},
        "Acrobot-v1": {},
        # Many gradient steps on one-step targets. With a single step and random actions that last,
        # IQN finds the goal and forgets it again.
        "MountainCar-v0": {
            "updates_per_step": 8,
            "learning_rate": 5e-4,
            "adam_eps": 1e-5,
            "n_step": 1,
            "num_levels": 2,
            "num_target_levels": 2,
            "num_policy_levels": 4,
            "num_cosines": 4,
            "target_every": 200,
            "eps_end": 0.05,
            "exploration_fraction": 0.3,
            "activation": "swish",
            "normalize_obs": True,
        },
        "Breakout-MinAtar": {**BITS, "adam_eps": 1e-6},
    },
    "alphazero": {
        "tic_tac_toe": {"env": "pgx/tic_tac_toe"},
        "connect_four": {
            "env": "pgx/connect_four",
            "total_timesteps": 3_000_000,
            "num_steps": 32,
            "update_epochs": 4,
            "num_minibatches": 8,
            "learning_rate": 1e-3,
            "hidden_sizes": (256, 256),
        },
    },
}
