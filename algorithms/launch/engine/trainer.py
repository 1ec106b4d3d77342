"""A configuration on devices: its environment, its compiled programs, and what they need."""

from typing import Any

import jax

from algorithms import parts
from algorithms.launch.engine import devices, hosts, programs, progress, settings, split
from algorithms.launch.engine.errors import UserError

SPARE = 0.1  # of the memory, for what the compiler does not know of
SPARE_TRIALS = 0.25  # a share of trials computed in vain, rather than compile another program
EXCESS = 0.05  # of total_timesteps, from which on a longer plan is warned of


class Trainer:
    """A configuration on devices: its environment, layout and programs.

    Every chunk of trials of one size uses the same.
    """

    def __init__(
        self,
        module: Any,
        config: Any,
        num_trials: int,
        view: progress.Progress,
    ):
        self.module, self.config, self.view = module, config, view
        self.name = f"{settings.algorithm_name(module)} on {settings.env_name(config)}"
        devices.use_compilation_cache()
        with view.timed("import"):  # of the environment's library
            self.env, self.host_params, self.plan = programs.make_environment(module, config)
        self.axes: Any = None
        if split.count(module) > 1:
            self.axes = split.axes(module, config, self.env, self.host_params)
        view.quiet |= not hosts.is_first()
        self.settled = False  # whether its layout is one that trials are trained with
        self.arrange(num_trials)

    def arrange(self, num_trials: int, block: int | None = None) -> None:
        """Chooses devices for so many trials at once; `block` as of `devices.arrange`."""
        self.programs: programs.Programs | None = None
        self.layout = self.layout_of(num_trials, block)

    def layout_of(self, num_trials: int, block: int | None = None) -> devices.Layout:
        """What `arrange` chooses."""
        own = getattr(self.module, "block", None)  # a population fills a core by itself
        layout = devices.arrange(num_trials, block or own, split.count(self.module))
        return layout._replace(axes=self.axes)

    def compile(self, start: bool) -> None:
        """Compiles the programs that are missing; `start`: also that of new trials."""
        if self.programs is None or (start and self.programs.start is None):
            self.programs = programs.compile_programs(
                self.module, self.config, self.env, self.host_params, self.layout, start
            )

    @property
    def compiled(self) -> programs.Programs:
        """What `compile` has made."""
        if self.programs is None:
            raise RuntimeError(f"{self.name} is not compiled")
        return self.programs

    @property
    def bytes_per_device(self) -> int:
        """What the compiled programs take of a device's memory, with their trials."""
        return self.compiled.bytes_per_device

    def check_capacity(self, advice: str) -> None:
        """Refuses programs that do not fit, before anything runs; `{fewer}` trials would."""
        needed, limit = self.bytes_per_device, usable_capacity(self.layout)
        if needed > limit and self._is_least:
            raise self._too_large(limit)
        if needed > limit:
            raise UserError(
                f"{self.layout.num_trials} trials need {in_words(needed)} of each device's memory "
                f"and may take {in_words(limit)}: {advice.format(fewer=self._fewer(limit))}"
            )

    def again(
        self, num_trials: int, at_most: int | None, limit: int, start: bool
    ) -> tuple["Trainer", list[range]]:
        """A trainer for other trials of this configuration, and their chunks, as of `fit`.

        It is this one where its programs hold so many. Its block of trials is kept where that
        computes no more than SPARE_TRIALS in vain.
        """
        if not self.settled:
            return self, self.fit(num_trials, at_most, limit, start)
        at_once, block = min(at_most or num_trials, num_trials), self.layout.block
        fits = self.layout_of(at_once, block).num_computed <= (1.0 + SPARE_TRIALS) * at_once
        if fits and self.programs and at_once == num_trials <= self.layout.padded:
            self.compile(start)
            return self, [range(num_trials)]
        other = Trainer(self.module, self.config, num_trials, self.view)
        return other, other.fit(num_trials, at_most, limit, start, block if fits else None)

    def fit(
        self,
        num_trials: int,
        at_most: int | None,
        limit: int,
        start: bool,
        block: int | None = None,
    ) -> list[range]:
        """Compiles for as many trials at once as the memory takes. Returns the chunks of them.

        Args:
          num_trials: altogether.
          at_most: at once, whatever the memory takes.
          limit: bytes of each device.
          start: as of `compile`.
          block: as of `devices.arrange`, for all trials at once.

        Raises:
          UserError: not even one trial on each device fits.
        """
        at_once = min(at_most or num_trials, num_trials)
        while True:
            own, chunks = self._cut(num_trials, at_once, block)
            self.arrange(len(chunks[0]), own)
            self.settled = True
            self.compile(start)
            if self.bytes_per_device <= limit:
                return chunks
            if self._is_least:
                raise self._too_large(limit)
            at_once = self._fewer(limit)

    @property
    def _is_least(self) -> bool:
        """Whether no device could hold less: of one trial, and of it as few shards as can be."""
        layout = self.layout
        alone = layout.padded == 1 or layout.across == split.count(self.module)
        return layout.per_device == 1 and alone

    def _too_large(self, limit: int) -> UserError:
        """The error of a device that cannot hold a single trial."""
        return UserError(
            f"{self.name}: a trial needs {in_words(self.bytes_per_device)} and may take "
            f"{in_words(limit)} of a device's memory: fewer num_envs, a smaller buffer or "
            "network would do"
        )

    def _cut(self, num_trials: int, at_once: int, block: int | None) -> tuple[int, list[range]]:
        """Chunks of whole blocks, and the block: that of all trials, so that the numbers agree.

        Fewer trials at once than such a block on each device make a smaller one.
        """
        self.arrange(num_trials, block)
        block, count = self.layout.block, jax.device_count() // self.layout.across
        if at_once >= num_trials:
            return block, [range(num_trials)]
        block = max(1, min(block, at_once // count))
        size = max(at_once // (block * count) * block * count, min(at_once, block * count))
        return block, devices.cut(num_trials, size)

    def _fewer(self, limit: int) -> int:
        """Trials at once that should fit where these do not."""
        layout = self.layout
        if layout.per_device == 1:  # the others' devices then share its shards
            return layout.padded // 2
        share = int(layout.per_device * limit / self.bytes_per_device)
        each = max(1, min(share, layout.per_device - 1))
        return each * (len(layout.devices) // layout.across)


def usable_capacity(layout: devices.Layout) -> int:
    """Bytes that programs may take of each device; CPU devices share the machine's memory."""
    device = layout.devices[0]
    sharing = jax.local_device_count() if device.platform == "cpu" else 1
    return hosts.from_first(lambda: int((1.0 - SPARE) * parts.device_capacity(device) / sharing))


def in_words(number: float) -> str:
    """Bytes for people."""
    for unit, letters in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= unit:
            return f"{number / unit:.3g} {letters}"
    return f"{number:.0f} B"


# --- how long it is ---------------------------------------------------------------------------


def length(plan: parts.Plan) -> str:
    """A plan's steps and updates for people; empty where they are unknown."""
    if not plan.updates:
        return ""
    return f"{plan.steps:,} steps in {plan.updates:,} update{'s' * (plan.updates > 1)}"


def excess(config: Any, plan: parts.Plan, rounds: bool = False) -> str:
    """A hint if a plan is longer than `total_timesteps` by more than EXCESS; else "".

    Args:
      rounds: its points are the rounds of a population, 2 or more.
    """
    name, fewest = ("pbt", 2) if rounds else ("num_evals", 1)
    total, most = config.total_timesteps, (1.0 + EXCESS) * config.total_timesteps
    if plan.steps <= most:
        return ""
    steps = plan.steps // plan.updates
    updates = -(-total // steps)
    better = [n for n in range(fewest, plan.points) if -(-updates // n) * n * steps <= most]
    sizes = " or ".join(name for name in ("num_envs", "num_steps") if hasattr(config, name))
    hint = f"an update takes {steps:,} steps, fewer {sizes} would come closer"
    if better:
        hint = f"every point takes as many updates, {name}={better[-1]} would come closer"
    more = f"{100 * (plan.steps / total - 1):,.0f} % more"
    return f"total_timesteps={total} makes {plan.steps:,} steps, {more}: {hint}"
