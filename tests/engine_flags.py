"""The flags of our own engine, as its parser knows them."""

from __future__ import annotations

import argparse

from engine.args import EngineArgs


def own_flags() -> frozenset[str]:
    parser = argparse.ArgumentParser()
    EngineArgs.add_cli_args(parser)
    return frozenset(word for action in parser._actions for word in action.option_strings)
