"""Chooses the kernel set: what `--kernels` asks for, and what can run on this device."""

from __future__ import annotations

import importlib.util
import logging
import os
from dataclasses import dataclass

import torch

from engine.config import GPU_QUANTIZATIONS, DeviceConfig, asks_for_triton
from engine.env import cpu_has_bf16
from engine.errors import ConfigError
from engine.kernels.kernel_set import KernelSet, create_kernel_set
from engine.kernels.native.build import BuildError, Formats, built_library
from engine.kernels.native.instruction_sets import VARIABLE, choose_instruction_set
from engine.kernels.native.library import open_library
from engine.kernels.native.model_step import NativeKernels
from engine.kernels.triton.runtime import prepare
from engine.kernels.triton.targets import (
    INTERPRETED,
    Target,
    target_named,
    target_of_capability,
)
from engine.kernels.weight_formats import weight_formats
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

    Logs the choice and its reason. Raises ConfigError when what is asked for is impossible.
    """
    asked = device.kernels
    if asks_for_triton(asked, device.device):
        obstacle = _triton_obstacle(device, model_sets)
        if obstacle is None:
            return SelectedKernels(_triton_kernels(device), ["TRITON", "REFERENCE"])
        if asked == "triton":
            raise ConfigError(f"--kernels triton cannot be used: {obstacle}.")
        if device.quantization.startswith("fp8"):
            raise ConfigError(
                f"--quantization {device.quantization} needs Triton's kernels: {obstacle}."
            )
        logger.warning("Triton kernels are not used: %s.", obstacle)
        return SelectedKernels(create_kernel_set("reference"), ["REFERENCE"])
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


def _triton_kernels(device: DeviceConfig) -> KernelSet:
    prepare(device.device)
    from engine.kernels.triton.kernels import TritonKernels

    formats = weight_formats(device.quantization)
    if device.device == "cpu":
        logger.warning(
            "Triton kernels run in Triton's interpreter on this CPU (TRITON_INTERPRET=1): that is "
            "for tests of the kernels, and thousands of times slower than --kernels native."
        )
        return TritonKernels(INTERPRETED, formats=formats)
    target = _target_of_device()
    logger.info("Triton kernels are used with the tiles of %s.", target.name)
    return TritonKernels(target, formats=formats)


def _target_of_device() -> Target:
    if torch.version.hip is not None:
        return target_named("gfx942")
    return target_of_capability(*torch.cuda.get_device_capability())


def _triton_obstacle(device: DeviceConfig, model_sets: list[str]) -> str | None:
    """Why Triton's kernels cannot run this model here."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed; it exists for Linux, type `pip install triton`"
    if "triton" not in model_sets:
        return "they have no code for this architecture"
    if device.quantization not in ("none", *GPU_QUANTIZATIONS):
        return f"they have no {device.quantization} weights; leave --quantization out"
    if device.device == "cpu":
        return None
    try:
        target = _target_of_device()
    except ConfigError as error:
        return str(error)
    if device.dtype == "bfloat16" and target.half_dtype != "bf16":
        return f"a GPU of the kind {target.name} does not multiply bfloat16; give --dtype float16"
    return None


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
