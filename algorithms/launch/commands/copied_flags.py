"""The flags of a copied file: those of its Config, in the words of the kit's command line."""

import dataclasses
import sys
import typing
from collections.abc import Callable
from typing import Any

import tyro

from algorithms.launch.commands.flags import (
    bool_of,
    named_values,
    named_values_text,
    whole_number,
    whole_numbers,
    with_words,
)
from algorithms.parts.fields import check_reals


def make(make_train: Callable, config: type, about: str) -> Any:
    """make_train of the Config that the command line asks for.

    The process ends for --help (exit code 0). For a flag that cannot be read or used it ends with a
    message (2).

    Args:
      make_train: the algorithm's.
      config: the Config's class.
      about: a text whose first line --help begins with.
    """
    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def rule(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        items = typing.get_args(info.type)
        read: Callable[[str], Any]
        write: Callable[[Any], str]
        if info.type is int:
            metavar, read, write = "INT", whole_number, str
        elif info.type is bool:
            metavar, read, write = "TRUE|FALSE", bool_of, lambda x: str(x).lower()
        elif items == (int, ...):
            metavar, read, write = "INT,INT,...", whole_numbers, lambda x: ",".join(map(str, x))
        elif items and typing.get_origin(items[0]) is tuple:
            metavar, read, write = "NAME=VALUE,...", named_values, named_values_text
        else:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar=metavar,
            instance_from_str=lambda words: read(words[0]),
            is_instance=lambda value: isinstance(value, int | tuple),
            str_from_instance=lambda value: [write(value)],
        )

    asked: Any = tyro.cli(
        config,
        args=with_words(dataclasses.fields(config), sys.argv[1:]),
        description=about.partition("\n")[0],
        config=(tyro.conf.FlagConversionOff,),
        registry=registry,
    )
    try:
        check_reals(asked)
        return make_train(asked)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
