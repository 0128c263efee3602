from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from engine.args import EngineArgs
from engine.config import TaskConfig
from engine.env import HostDevice
from engine.errors import ConfigError
from engine.model_config import ModelConfig
from engine.pooling_params import PoolingParams, parse_pooler_config
from tests.tiny_model import write_tiny_llama

MEAN = PoolingParams(pooling_type="MEAN")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, PoolingParams(pooling_type="LAST")),
        ("{}", PoolingParams(pooling_type="LAST")),
        ('{"pooling_type": "MEAN"}', MEAN),
        ('{"seq_pooling_type": "mean", "use_activation": true}', MEAN),
        ('{"pooling_type": "LAST", "normalize": true, "dimensions": null}', PoolingParams()),
    ],
)
def test_vllms_pooler_config(text: str | None, expected: PoolingParams) -> None:
    assert parse_pooler_config(text) == expected


def test_a_value_that_names_no_way_leaves_the_models_own() -> None:
    assert parse_pooler_config('{"normalize": true}', "CLS").pooling_type == "CLS"
    assert parse_pooler_config('{"pooling_type": "max"}', "CLS").pooling_type == "MAX"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("MEAN", "'MEAN' is not JSON"),
        ('["MEAN"]', "is not an object"),
        ('{"pooling_type": "ALL"}', "'ALL' is not known; use one of LAST, MEAN, CLS, MAX,"),
        ('{"pooling_type": 3}', "'3' is not known"),
        ('{"normalize": false}', "normalize=false is not supported"),
        ('{"pool": "MEAN"}', 'pool="MEAN" is not supported; the key that this engine knows'),
    ],
)
def test_what_it_cannot_say(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_pooler_config(text)
    assert words in str(caught.value)


def tasks(folder: Path, *flags: str) -> TaskConfig:
    parser = argparse.ArgumentParser()
    EngineArgs.add_cli_args(parser)
    args = EngineArgs.from_cli(parser.parse_args(flags))
    model = ModelConfig.from_folder(write_tiny_llama(folder), "tiny")
    return args.create_engine_config(model, HostDevice("cpu", "CPU", None)).tasks


def test_tasks_follow_runner_and_convert(tmp_path: Path) -> None:
    assert tasks(tmp_path).names == ("generate", "embed")
    assert tasks(tmp_path, "--convert", "embed").names == ("generate", "embed")
    assert tasks(tmp_path, "--convert", "none").names == ("generate",)
    served = tasks(tmp_path, "--runner", "pooling", "--pooler-config", '{"pooling_type":"MEAN"}')
    assert (served.names, served.pooling) == (("embed",), MEAN)
    with pytest.raises(ConfigError, match="leaves nothing to serve"):
        tasks(tmp_path, "--runner", "pooling", "--convert", "none")
