"""Where tests find files: the checkout, their data, and logs and pages that were collected.

What was collected lies beside the checkout (its README says why); tests are skipped without it.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
PAGES = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md"),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")),
)
"""What people read, relative to ROOT."""
SHARED = Path(__file__).parents[2] / "shared"
