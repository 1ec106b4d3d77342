"""Settings that are known to work: {algorithm: {preset: {field: value}}}.

A preset is named for its environment and sets `env` to its name unless it gives another.
"""

from typing import Any

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "ppo": {
        "CartPole-v1": {},
    },
}
