"""The fastest on Hopper: the library's kernel for TMA and wgmma, defined in tiledsl/gemm/hopper.py."""

from tiledsl.gemm.hopper import choose, hopper_fastest

__all__ = ["choose", "hopper_fastest"]

if __name__ == "__main__":
    from gallery import main

    main(hopper_fastest)
