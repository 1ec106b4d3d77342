"""Every algorithm's file can be copied: it needs `envs` and nothing else of the kit."""

import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
NAMES = sorted(f.stem for f in (ROOT / "algorithms").glob("*.py") if f.stem != "__init__")

USE = """
import dataclasses, importlib, sys
import jax
import envs

SETTINGS = dict(num_envs=4, num_steps=4, total_timesteps=64, learning_starts=8, hidden_sizes=(8,))
for name in sys.argv[1:]:
    algorithm = importlib.import_module(name)
    fields = {field.name for field in dataclasses.fields(algorithm.Config)}
    settings = {name: value for name, value in SETTINGS.items() if name in fields}
    train = algorithm.make_train(algorithm.Config(num_evals=1, **settings))
    _, metrics = jax.eval_shape(train, jax.random.key(0))
    print(name, metrics["timestep"].shape[0])
assert "algorithms" not in sys.modules and "tests" not in sys.modules
print(envs.__file__)
"""


def test_files_and_envs_alone_can_train(tmp_path):
    """The copy test, as far as tracing goes; their own tests run the very same programs."""
    for name in NAMES:
        shutil.copy(ROOT / "algorithms" / f"{name}.py", tmp_path)
    shutil.copytree(ROOT / "envs", tmp_path / "envs", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "use.py").write_text(USE)
    # -P and a bare environment: the folder itself is all there is besides site-packages, where an
    # editable install of the kit would lose to it.
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); exec(open('use.py').read())"
    command = [sys.executable, "-P", "-c", code, *NAMES]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    *traced, home = result.stdout.splitlines()
    assert traced == [f"{name} 2" for name in NAMES] and len(NAMES) >= 10
    assert home == str(tmp_path / "envs" / "__init__.py")
