"""Known bugs of GPU kernels, each as a small kernel whose const SAFE chooses between the bug and its mended twin.

`PUBLIC`: bugs with a public thread that reports them. `TEXTBOOK`: the racy and race-free pairs on which
verifiers of GPU programs are usually compared. A comment ``# found: T101`` stands at the line of the finding.
"""

from known_bugs import async_copies, barriers, between_blocks, products, textbook, within_blocks
from known_bugs.case import Case

__all__ = ["PUBLIC", "TEXTBOOK", "Case"]

PUBLIC = [
    *async_copies.CASES,
    *products.CASES,
    *barriers.CASES,
    *within_blocks.CASES,
    *between_blocks.CASES,
]

TEXTBOOK = textbook.CASES
