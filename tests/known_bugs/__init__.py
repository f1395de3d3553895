"""Known bugs of GPU kernels, each as a small kernel whose const SAFE chooses between the bug and its mended twin.

`PUBLIC`: bugs of shipped kernels, with the thread that reports them. `TEXTBOOK`: the racy and race-free pairs on which
verifiers of GPU programs are usually compared. A comment ``# found: T101`` stands at the line of the finding.
"""
