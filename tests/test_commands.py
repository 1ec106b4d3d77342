"""Commands on the pages: all of their flags are read, and slow tests run those that train."""

import importlib
import importlib.util
import re
import shlex
import shutil

import pytest

from algorithms.launch import cli, flags
from algorithms.launch.engine.errors import UserError
from envs import registry
from tests.algorithms.launch.kept.make import KEPT
from tests.seconds import ALGORITHMS
from tests.test_docs import PAGES, ROOT

IN_BLOCKS = re.compile(r"^ {4,}((?:\w+=\S+ )*(?:python|single-file-rl) .*)$", re.M)
IN_LINES = re.compile(r"`((?:python|single-file-rl) [^`\n]+)`")
FILE = re.compile(r"(?:\w+=\S+ )*(?:python algorithms/(\w+)\.py|single-file-rl (\w+))\s*(.*)")
SCRIPT = re.compile(r"python (?:-m )?((?:algorithms\.launch|tests)[\w./]*?)(?:\.py)?(?: (.*))?")
OF_A_RUN = ("config", "resume", "evaluate", "render", "export")
# Settings of a run, so small that it takes the time of compiling; replayed sequences fit into it.
TINY = "--num-evals 1 --num-eval-episodes 1 --no-eval-at-start --total-timesteps 1024"
POINTS = "--num-evals 8 --total-timesteps 8192"  # halving needs several


def commands(page):
    """The commands of a page, each in one line and without its comment."""
    whole = re.sub(r"\\\n\s*", "", page.read_text())
    found = [*IN_BLOCKS.findall(whole), *IN_LINES.findall(whole)]
    return list(dict.fromkeys(line.partition(" #")[0].strip() for line in found))


def of_algorithms(pages=PAGES):
    """{command: (algorithm, its words)} of all pages; `...` stands for any words."""
    lines = [line for page in pages for line in commands(page)]
    found = {line: FILE.fullmatch(line.replace(" ...", "")) for line in lines}
    named = {line: (m[1] or m[2], shlex.split(m[3])) for line, m in found.items() if m}
    known = lambda name, words: name in ALGORITHMS and "--help" not in words
    return {line: one for line, one in named.items() if known(*one)}


def read(name, words):
    """The flags of a command, with the defaults in place of the run that it names."""
    module = importlib.import_module(f"algorithms.{name}")
    names_run = {f"--{word}" for word in OF_A_RUN} & {*words}
    base = (module.Config(), flags.Flags()) if names_run else cli.defaults(module, words)
    config, given = flags.parse(module, words, *base)
    asked = [command for command in cli.TAKES if getattr(given, command, None)]
    cli.refuse_others(asked[0] if asked else "run", base, (config, given))
    return module, config, given


def test_all_flags_on_the_pages_are_read():
    found = of_algorithms()
    assert len(found) > 90
    wrong = []
    for line, one in found.items():
        try:
            read(*one)
        except UserError as error:
            wrong.append(f"{line}: {error}")
    assert not wrong, "\n".join(wrong)


def test_other_commands_name_files_and_flags_that_exist():
    for page in PAGES:
        for line in commands(page):
            if not (found := SCRIPT.fullmatch(line)):
                continue
            file = ROOT / f"{found[1].replace('.', '/')}.py"
            file = file if file.exists() else file.with_suffix("") / "__init__.py"
            texts = [f.read_text() for f in (file, *(file.parent / "tools").glob("*.py"))]
            for word in shlex.split(found[2] or ""):
                if re.fullmatch(r"--[\w-]+", word):
                    assert any(
                        f'"{name}"' in text for text in texts for name in (word, word[2:])
                    ), f"{page.name}: {word}"


def missing(config):
    """A library that the command needs and that is not installed."""
    library = str(config.env).partition("/")[0]
    if "/" not in str(config.env) or library not in registry.LIBRARIES:
        return ""
    try:
        importlib.import_module(f"envs.{library}").names()
    except (ImportError, ValueError):
        return library
    return ""


# NAME stands for a name; the others need an account, a picture, a GPU or a command before them.
NOT_RUN = {"NAME", "--list", "--copy", "--dream", "--track", "--tensorboard", "dm_control"}
TRAINS = {
    line: one
    for line, one in of_algorithms().items()
    if not line.endswith("...")
    and not NOT_RUN & {*one[1]}
    and not re.search(r"--resume runs/RUN --point|SWEEP/best(-| )|my_module", line)
}


@pytest.mark.slow
@pytest.mark.parametrize("line", TRAINS)
def test_a_command_does_what_the_page_says(line, tmp_path, monkeypatch, vmapped_keys):
    """With as few steps, seeds and episodes as it can have; runs that it names are kept ones, or
    trained before."""
    name, words = TRAINS[line][0], [*TRAINS[line][1]]
    monkeypatch.chdir(tmp_path)
    named = set() if "--run-dir" in words else set(re.findall(r"runs/\w+", line))
    if named and name != "ppo":
        pytest.skip("of a run of another algorithm")
    if "--trial" in words and words[words.index("--trial") + 1] != "all":
        words[words.index("--trial") + 1] = "0"  # kept runs have few
    module, config, given = read(name, words)
    for path in named:
        many = "SWEEP" in path or "--trial" in words
        if given.init_from:  # whose network has to fit
            assert not cli.dispatch(module, [*TINY.split(), "--run-dir", path])
        else:
            shutil.copytree(KEPT / ("ppo-sweep" if many else "ppo-run"), path)
    if library := missing(config):
        pytest.skip(f"{library} is not installed")
    if not any(getattr(given, command, None) for command in cli.TAKES):
        words += TINY.split() + POINTS.split() * ("--halving" in words)
        if given.pbt:  # two rounds, each as long as there
            steps = config.total_timesteps // given.pbt * 2
            words += f"--pbt 2 --num-evals 2 --total-timesteps {steps}".split()
        words += ["--learning-starts", "0"] * hasattr(config, "learning_starts")
        words += ["--num-seeds", "2"] * (given.num_seeds > 2)
        words += ["--samples", "4"] * bool(given.samples and given.samples > 4)
    elif given.evaluate:
        words += ["--episodes", "2"]
    elif given.resume and "--total-timesteps" in words:
        words += ["--total-timesteps", "384"]  # the kept run has 64 steps a point
    assert not cli.dispatch(module, words)
