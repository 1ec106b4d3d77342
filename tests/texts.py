"""The text of every file's program, and its hashes in tests/texts.json.

    python -m tests.texts                      prints which programs differ from the hashes
    python -m tests.texts --write              writes the hashes of all files
    python -m tests.texts --write ppo dqn      of these files
    python -m tests.texts --texts DIR ppo      writes the texts to a folder, for a diff

A text is what jax lowers train(rng, None, 1) to: the start, the updates and the evaluation, with
the Config's floats as constants. Nothing is compiled. Names of functions and of results are left
out, and locations too. So a renamed helper, a moved one or a comment changes no hash. Another
constant, shape, operation or order of operations does. A text belongs to the versions in its entry.

Each file has four texts: with its defaults and with one preset, for a CPU and for an accelerator.
The preset is the last one whose environment needs no optional library. A file without such a preset
has its last preset's settings in the environment of its defaults.
"""

import argparse
import contextlib
import functools
import gc
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax

import algorithms
from algorithms.parts import info, training
from algorithms.presets import PRESETS
from envs import loops

FILE = Path(__file__).with_suffix(".json")
INFOS = info.of_folder(Path(algorithms.__file__).parent)
LIBRARIES = ("jax", "jaxlib", "flax", "optax", "gymnax")  # a text may change with each of them
# Of `loops.platform` and of jax's lowering rules; neither CUDA nor its plugin is needed.
PLATFORMS = {"cpu": ("cpu", "cpu"), "accelerator": ("gpu", "cuda")}
TEXTS = tuple((of, platform) for of in ("defaults", "preset") for platform in PLATFORMS)

FUNCTION = re.compile(r'  func\.func \w+ @([\w.$-]+|"[^"]*")\(')
SYMBOL = re.compile(r'@([\w.$-]+|"[^"]*")')
RESULT = re.compile(r'jax\.result_info = "[^"]*"')


def needs(name: str) -> tuple[str, ...]:
    """The optional libraries of a file."""
    return tuple(INFOS[name].get("needs", ()))


def installed(name: str) -> bool:
    return all(map(importlib.util.find_spec, needs(name)))


def versions(name: str) -> dict[str, str]:
    """The versions that a file's texts belong to."""
    return {one: importlib.metadata.version(one) for one in (*LIBRARIES, *needs(name))}


def other_versions(name: str, entry: dict) -> str:
    """The sentence about versions that differ from those of an entry; empty if none does."""
    here = versions(name)
    differ = [
        f"{one} {here.get(one)} instead of {x}"
        for one, x in entry["versions"].items()
        if here.get(one) != x
    ]
    return f"the hashes of {name} are of other versions: {', '.join(differ)}" if differ else ""


def is_plain(name: str, preset: str) -> bool:
    """Whether a preset's environment needs nothing beyond the kit and the file's libraries."""
    library, slash, _ = PRESETS[name][preset].get("env", preset).partition("/")
    return not slash or library in needs(name)


def choose_preset(name: str) -> str:
    """The preset of a file's texts: the last plain one, or the last one if none is plain."""
    presets = list(PRESETS[name])
    return ([preset for preset in presets if is_plain(name, preset)] or presets)[-1]


def config_of(name: str, preset: str | None = None) -> Any:
    """The Config of the defaults or of a preset."""
    config = importlib.import_module(f"algorithms.{name}").Config
    if preset is None:
        return config()
    settings = {"env": preset} | PRESETS[name][preset]
    if not is_plain(name, preset):
        settings = {k: x for k, x in settings.items() if k not in ("env", "env_settings")}
    return config(**settings)


@contextlib.contextmanager
def made_for(platform: str) -> Iterator[None]:
    """Traces programs for a platform, whichever this process has, and none made for another."""
    train = functools.partial(training._train.__wrapped__)  # jax keeps the programs of a function
    train = jax.jit(train, static_argnames=training.STATIC)
    with (
        mock.patch.object(loops, "platform", lambda: platform),
        mock.patch.object(training, "_train", train),
        jax.debug_key_reuse(False),  # the checks of keys take long, and change nothing
    ):
        yield


def lowered(name: str, config: Any, platform: str) -> str:
    """The normalised text of a file's program on "cpu" or "accelerator"."""
    module = importlib.import_module(f"algorithms.{name}")
    traced_for, lowered_for = PLATFORMS[platform]
    with made_for(traced_for):
        train = module.make_train(config)
        key = jax.eval_shape(lambda: jax.random.key(0))
        traced = jax.jit(lambda rng: train(rng, None, 1)).trace(key)
        return normalised(traced.lower(lowering_platforms=(lowered_for,)).as_text())


def normalised(text: str) -> str:
    """The functions of a module without their names, numbered in the order of their calls.

    Equal functions are one. Otherwise the text would depend on how many of them jax still had from
    earlier programs.
    """
    bodies: dict[str, list[str]] = {}
    lines = iter(text.splitlines())
    for line in lines:
        if start := FUNCTION.match(line):
            body = bodies[start[1]] = [line.replace(f"@{start[1]}", "", 1)]
            while line != "  }":
                body.append(line := next(lines))
    numbers: dict[str, int] = {}

    @functools.cache
    def new_name(symbol: str) -> str:
        body = RESULT.sub("", "\n".join(bodies[symbol]))
        named = lambda found: new_name(found[1]) if found[1] in bodies else found[0]
        return f"@{numbers.setdefault(SYMBOL.sub(named, body), len(numbers))}"

    new_name("main")
    return "\n".join(f"// @{number}\n{body}" for body, number in numbers.items()) + "\n"


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read() -> dict[str, dict]:
    """{file: entry} of texts.json."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def preset_of(of: str, preset: str) -> str | None:
    return preset if of == "preset" else None


def entry_of(name: str) -> dict:
    """A file's entry: versions, and hashes for the defaults and for the preset of the rule."""
    preset = choose_preset(name)
    entry: dict = {"versions": versions(name), "defaults": {}, "preset": {"name": preset}}
    for of, platform in TEXTS:
        text = lowered(name, config_of(name, preset_of(of, preset)), platform)
        entry[of][platform] = hash_of(text)
    return entry


def different(name: str, entry: dict) -> list[str]:
    """The texts of a file that differ from its entry, as "defaults, cpu"."""
    found = []
    for of, platform in TEXTS:
        config = config_of(name, preset_of(of, entry["preset"]["name"]))
        if hash_of(lowered(name, config, platform)) != entry[of][platform]:
            found.append(f"{of}, {platform}")
    return found


def complaint(name: str, entries: dict[str, dict]) -> str:
    """The sentence about an entry that is missing, or whose preset is; empty if it is complete."""
    command = f"run python -m tests.texts --write {name}"
    if name not in entries:
        return f"tests/texts.json has no entry of {name}: {command}"
    preset = entries[name]["preset"]["name"]
    if preset not in PRESETS[name]:
        return f"{name} has no preset {preset} any more: {command}"
    return ""


def write(names: Iterable[str]) -> None:
    """Writes the entries of these files, and keeps the others that are still files."""
    entries = {name: entry for name, entry in read().items() if name in INFOS}
    for name in names:
        entries[name] = entry_of(name)
        print(f"wrote {name}", flush=True)
    # One line for each part of an entry, so that a diff shows what changed.
    parts = lambda entry: ",\n".join(f'  "{k}": {json.dumps(x)}' for k, x in entry.items())
    body = ",\n".join(f'"{name}": {{\n{parts(entries[name])}\n}}' for name in sorted(entries))
    FILE.write_text(f"{{\n{body}\n}}\n")


def check(names: Iterable[str]) -> bool:
    """Prints which texts differ; whether none does."""
    entries, same = read(), True
    for name in names:
        problem = complaint(name, entries) or other_versions(name, entries[name])
        for one in [problem] if problem else different(name, entries[name]):
            same = False
            print(one if problem else f"{name} ({one}) differs", flush=True)
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="files, all by default")
    parser.add_argument("--write", action="store_true", help="write the hashes")
    parser.add_argument("--texts", type=Path, metavar="DIR", help="write the texts to a folder")
    given = parser.parse_args()
    if unknown := sorted({*given.names} - {*INFOS}):
        parser.error(f"no such file: {', '.join(unknown)}")
    names = [name for name in given.names or INFOS if installed(name)]
    for name in {*(given.names or INFOS)} - {*names}:
        print(f"skipped {name}, which needs {' and '.join(needs(name))}")
    gc.set_threshold(100_000, 20, 50)  # tracing makes much that stays
    if given.texts:
        given.texts.mkdir(parents=True, exist_ok=True)
        for name in names:
            for of, platform in TEXTS:
                config = config_of(name, preset_of(of, choose_preset(name)))
                path = given.texts / f"{name}-{of}-{platform}.txt"
                path.write_text(lowered(name, config, platform))
        return 0
    if given.write:
        write(names)
        return 0
    return 0 if check(names) else 1


if __name__ == "__main__":
    sys.exit(main())
