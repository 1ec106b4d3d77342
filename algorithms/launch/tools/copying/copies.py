"""`--copy DIR`: an algorithm's file with all that it uses of the kit, as one file."""

from pathlib import Path
from typing import Any

from algorithms.launch.engine import files
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.versions import kit, licence, requirements
from algorithms.launch.tools.copying import bundle
from algorithms.launch.tools.copying.sources import KIT, Key
from envs import registry, suggest


def write(module: Any, directory: Path, env: str | None = None) -> Path:
    """Writes a copy of an algorithm's file into a directory, whole or not at all.

    Args:
      module: the algorithm's.
      env: an environment that comes along, as the one that the file's Config names does: one of the
        kit's own, or `library/name`. Those of gymnax are found by name.

    Raises:
      UserError: the directory has a file's name, a file of that name is there, or something cannot
        be copied.
    """
    if directory.suffix == ".py":
        raise UserError(f"--copy {directory}: give a folder, such as {directory.parent}")
    target = files.local(directory) / Path(module.__file__).name
    if target.exists() or target.is_symlink():
        raise UserError(f"{target} exists: a copy overwrites nothing")
    text = copy(module, env)
    with files.writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        files.write_whole(target, text.encode())
    return target


def copy(module: Any, env: str | None = None) -> str:
    """The text of a copy; `env` as for `write`.

    Raises:
      UserError: something that cannot be copied.
    """
    envs: dict[str, Key] = {}
    adapters: dict[str, str] = {}
    for name in dict.fromkeys(filter(None, (module.Config.env, env))):
        library, slash, _ = name.partition("/")
        if name in registry.OWN:
            home, kind = registry.OWN[name]
            envs[name] = Key(f"envs{home}", kind)
        elif slash and library in registry.LIBRARIES:
            adapters[library] = f"envs.{library}"
        elif ":" in name:
            raise UserError(f"--env {name}: pass an environment of your own to make_train")
        elif name not in registry.names():
            known = [*registry.names(), *(f"{library}/..." for library in registry.LIBRARIES)]
            raise UserError(suggest.unknown_environment("environment", name, known))
    made = bundle.Copy(Path(module.__file__), envs, adapters)
    return made.text(kit(), licence(KIT).decode(), requirements(KIT))
