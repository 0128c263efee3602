"""Chooses the kernel set: what `--kernels` asks for, and what can run on this device."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from engine.config import DeviceConfig
from engine.env import cpu_has_bf16
from engine.errors import ConfigError
from engine.kernels.kernel_set import KernelSet, create_kernel_set
from engine.kernels.native.build import BuildError, Formats, built_library
from engine.kernels.native.instruction_sets import VARIABLE, choose_instruction_set
from engine.kernels.native.library import open_library
from engine.kernels.native.model_step import NativeKernels
from engine.kv_sizing import KVCacheSpec
from engine.logger import get_logger

logger = get_logger(__name__)

_KEY_GROUP = 16  # tokens that one vector of keys holds
_MAX_HEAD_DIM = 512


@dataclass(frozen=True, slots=True)
class SelectedKernels:
    """The set to use, and the names (best first) of all that could have been used."""

    kernels: KernelSet | NativeKernels
    candidates: list[str]


def select_kernels(
    device: DeviceConfig, spec: KVCacheSpec, model_sets: list[str], num_threads: int
) -> SelectedKernels:
    """`model_sets` are the sets that the model's architecture has code for.

    Logs the choice and its reason. Raises ConfigError when `native` is asked for and impossible.
    """
    asked = device.kernels
    if asked == "reference":
        logger.info("Reference kernels (torch) are used: --kernels asks for them.")
        return SelectedKernels(create_kernel_set("reference"), ["REFERENCE"])
    obstacle = _obstacle(device, spec, model_sets)
    level = logging.INFO
    if obstacle is None:
        formats = Formats.needed(device.quantization, spec.dtype_bytes)
        try:
            return SelectedKernels(_native_kernels(num_threads, formats), ["NATIVE", "REFERENCE"])
        except (BuildError, OSError) as error:
            obstacle, level = str(error), logging.WARNING  # slower than it could be
            if not cpu_has_bf16():
                obstacle += ". Without them --dtype float32 is faster on this CPU"
    if asked == "native":
        raise ConfigError(f"--kernels native cannot be used: {obstacle}. Use auto or reference.")
    logger.log(level, "Native CPU kernels are not used: %s.", obstacle)
    return SelectedKernels(create_kernel_set("reference"), ["REFERENCE"])


def _native_kernels(num_threads: int, formats: Formats) -> NativeKernels:
    isa = choose_instruction_set()
    with built_library(isa, formats=formats) as path:
        library = open_library(path)
    reason = f"{VARIABLE} asks for {isa.name}" if os.environ.get(VARIABLE) else "the best it has"
    instructions = library.stoker_instructions().decode()
    logger.info("Native kernels for %s are used on this CPU: %s.", instructions, reason)
    build = path.stem.rpartition("-")[0]
    return NativeKernels(library, num_threads, instructions=instructions, build=build)


def _obstacle(device: DeviceConfig, spec: KVCacheSpec, model_sets: list[str]) -> str | None:
    """Why the native set cannot run this model here, apart from the build."""
    if device.device != "cpu":
        return f"they run on a CPU, and the device is {device.device}"
    if device.dtype != "bfloat16":
        return f"they compute in bfloat16, and the dtype is {device.dtype}"
    if "native" not in model_sets:
        return "they have no code for this architecture"
    if spec.block_size % _KEY_GROUP:
        return f"they need a block size that {_KEY_GROUP} divides, not {spec.block_size}"
    if spec.head_dim % (2 * _KEY_GROUP) or spec.head_dim > _MAX_HEAD_DIM:
        return f"they need a head_dim that 32 divides (up to 512), not {spec.head_dim}"
    return None
