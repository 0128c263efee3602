from __future__ import annotations

from pathlib import Path

import pytest

from engine.machine.amd_gpus import first_amd_gpu
from engine.machine.sizes import GIB


def card(folder: Path, number: int, *, vendor: str = "0x1002", vram: int, name: str = "") -> None:
    device = folder / "bus" / f"0000:{number:02x}:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "mem_info_vram_total").write_text(f"{vram}\n")
    if name:
        (device / "product_name").write_text(f"{name}\n")
    for entry in (f"card{number}", f"card{number}-DP-1"):
        (folder / "drm" / entry).mkdir(parents=True)
    (folder / "drm" / f"card{number}" / "device").symlink_to(device)


@pytest.mark.parametrize(
    ("cards", "found"),
    [
        ([], None),
        ([{"vram": 192 * GIB, "name": "Instinct MI300X"}], ("Instinct MI300X", 192 * GIB)),
        ([{"vram": 192 * GIB}], ("AMD GPU", 192 * GIB)),
        ([{"vram": 80 * GIB, "vendor": "0x10de"}], None),
        # A processor's own graphics come first along the bus.
        ([{"vram": GIB // 2}, {"vram": 64 * GIB, "name": "MI210"}], ("MI210", 64 * GIB)),
    ],
)
def test_the_first_gpu_with_memory_of_its_own(
    cards: list[dict[str, object]], found: tuple[str, int] | None, tmp_path: Path
) -> None:
    for number, facts in enumerate(cards):
        card(tmp_path, number, **facts)  # type: ignore[arg-type]
    assert first_amd_gpu(tmp_path / "drm") == found
