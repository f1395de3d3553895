"""Collects what a report holds from the compiler, which is asked as `k.explain` asks it."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tiledsl.arch import target_named
from tiledsl.backends.protocol import Resources
from tiledsl.compilation.explain import printed_stages, reports
from tiledsl.compilation.launch_report import room_of
from tiledsl.compilation.lowering import lower
from tiledsl.compilation.stages import label_of
from tiledsl.errors import ToolNotFoundError
from tiledsl.inspect.report import data
from tiledsl.inspect.report.check import checked
from tiledsl.inspect.report.measure import Run, measured
from tiledsl.inspect.report.places import Places
from tiledsl.inspect.report.roofline import roofline_of
from tiledsl.inspect.report.stages import ir_stages, ptx_stage, sass_stage
from tiledsl.inspect.report.timeline import timeline_of
from tiledsl.inspect.versions import versions
from tiledsl.ir.core import Op
from tiledsl.kernel import TileKernel
from tiledsl.passes.analysis.called import called
from tiledsl.passes.banks.bank_report import BankReport
from tiledsl.passes.cooperation.endpoints import End
from tiledsl.passes.cooperation.role_report import RolesReport
from tiledsl.passes.distribute.product_report import OperandReport, ProductReport
from tiledsl.passes.pipelining.report import PipelineReport, loop_text, schedule
from tiledsl.recursion import deep_recursion
from tiledsl.signatures.signature import Specialization


@dataclass(frozen=True)
class _Built:
    """What the backend made: without ptxas only the PTX. missing: what is not there, and why."""

    grid: Sequence[str]
    threads: Sequence[int]
    cluster: Sequence[int]
    shared: int
    written: Sequence[str]
    ptx: str
    cubin: bytes = b""
    resources: Resources | None = None
    missing: str = ""


def collect(
    kernel: TileKernel, arch: str, settings: Mapping[str, Any], check: list[str], run: Run | None = None
) -> data.Report:
    """Everything about `kernel`, compiled for `arch` with `settings`, which are consts and dtypes.

    check: sizes to run `k.check` with (`check.checked`). run: one that was measured. Raises the errors of a
    compilation; without ptxas or nvdisasm there is less in it.
    """
    from tiledsl.backends.ptx.sass.report import sass_report

    spec, arch = kernel.specialized(arch, settings)
    places = Places()
    at = places.of(kernel.signature.loc)
    built = _build(kernel, spec, arch, settings)
    label = label_of(kernel.name, spec)
    ir = ir_stages(printed_stages(kernel.signature, spec, arch, True), places)
    found = reports(kernel.signature, spec, arch, label)
    ptx = ptx_stage(built.ptx, places)
    sass, missing = None, built.missing
    if built.cubin:
        try:
            sass = sass_stage(sass_report(built.cubin, built.ptx), ptx, places)
        except ToolNotFoundError as error:
            missing = str(error)
    roles, pipeline = cast(RolesReport, found["roles"]), cast(PipelineReport, found["pipeline"])
    banks = banks_of(cast(BankReport, found["banks"]), places)
    ran = checked(kernel, settings, check, places)
    role_list, rings = [*roles_of(roles, places)], [*rings_of(roles, places)]
    timeline = timeline_of(ran.timeline, ran.deadlock, role_list, rings, places) if ran.timeline is not None else None
    return data.Report(
        kernel=_facts(kernel, spec, arch, label, built, at),
        findings=[*_findings(ran.findings, sass, banks, missing)],
        ir=ir,
        ptx=ptx,
        sass=sass,
        missing=missing,
        resources=built.resources,
        room=room_of(arch, built.resources) if built.resources is not None else None,
        banks=banks,
        products=[*products_of(cast(list[ProductReport], found["products"]), places)],
        launch_registers=roles.registers,
        roles=role_list,
        rings=rings,
        loops=loops_of(pipeline, places),
        groups=[*pipeline.groups],
        check=ran.check,
        timeline=timeline,
        measured=measured(kernel, arch, settings, run, role_list, rings, places) if run is not None else None,
        roofline=roofline_of(ran.work, arch, built.grid, ran.sizes) if ran.work is not None else None,
        provenance=_provenance(kernel, arch, settings, built),
        cubin=b64encode(built.cubin).decode(),
        # Last: all places are known now.
        python=places.chunks(),
        files=places.files,
        places=places.rows,
    )


def _build(kernel: TileKernel, spec: Specialization, arch: str, settings: Mapping[str, Any]) -> _Built:
    try:
        made = kernel.compile(arch, **settings)
    except ToolNotFoundError as error:
        from tiledsl.backends.ptx.codegen import emit_ptx

        with deep_recursion():
            low, written = lower(kernel.signature, spec, arch)
            ptx = emit_ptx(low, target_named(arch))[1]
        grid = [str(size) for size in low.grid]
        return _Built(grid, low.threads, low.cluster, low.shared_bytes, written, ptx, missing=str(error))
    return _Built(
        made.grid, made.threads, made.cluster, made.shared_bytes, made.written, made.ptx, made.cubin, made.resources
    )


def _facts(
    kernel: TileKernel, spec: Specialization, arch: str, label: str, built: _Built, place: int
) -> data.KernelFacts:
    known = dict(spec.tensors)
    tensors = [
        data.Tensor(p.name, t.dtype.name, [*map(str, p.dims)], t.unit, t.align, p.name in built.written)
        for p in kernel.signature.tensors
        if (t := known[p.name]) is not None
    ]
    return data.KernelFacts(
        name=kernel.name,
        label=label,
        usage=kernel.signature.usage,
        arch=arch,
        place=place,
        tensors=tensors,
        grid=[*built.grid],
        threads=[*built.threads],
        cluster=[*built.cluster],
        shared=built.shared,
    )


def banks_of(report: BankReport, places: Places) -> data.Banks:
    accesses = [*report.accesses]
    return data.Banks(report.used, report.limit, [*report.tiles], accesses, [places.of(a.loc) for a in accesses])


def products_of(products: Sequence[ProductReport], places: Places) -> Iterator[data.Product]:
    def operand(of: OperandReport) -> data.Operand:
        layout = of.layout
        if layout is None:
            return data.Operand(of.name, of.dtype, of.dims, of.tile)
        held = layout.tiles(of.dims), layout.size(of.dims), layout.holders(of.bits)
        return data.Operand(of.name, of.dtype, of.dims, of.tile, str(layout), layout.grid, *held)

    for product in products:
        yield data.Product(places.of(product.loc), product.instruction, [*map(operand, product.operands)])


def loops_of(report: PipelineReport, places: Places) -> list[data.Loop]:
    return [data.Loop(places.of(p.op.loc), p.stages, loop_text(p), schedule(p)) for p in report.loops]


def roles_of(report: RolesReport, places: Places) -> Iterator[data.Role]:
    from tiledsl.ir.ops.roles import Enter

    for role in report.roles:
        turns = dict.fromkeys(op.title for op in role.walk() if isinstance(op, Enter))
        threads = 1 if role.one_thread else role.threads
        place = places.of(role.loc)
        yield data.Role(
            role.title, place, role.first, role.all_warps, role.instances, threads, role.registers, [*turns]
        )


def rings_of(report: RolesReport, places: Places) -> Iterator[data.Ring]:
    def end(end: End) -> data.RingEnd:
        by: list[Op] = end.accesses
        at = list(dict.fromkeys(places.of(op.loc) for op in by))
        return data.RingEnd(end.role.title, list(dict.fromkeys(map(called, by))), end.arrivals, at)

    for ring in report.rings:
        tiles = [(tile.name, ring.bytes_of(tile)) for tile in ring.tiles]
        ends = end(ring.producer), end(ring.consumer)
        make = ring.make
        yield data.Ring(
            make.result.name, places.of(make.loc), make.stages, tiles, *ends, ring.in_flight, ring.shared_along
        )


def _findings(
    of_check: list[data.Finding], sass: data.Sass | None, banks: data.Banks, missing: str
) -> Iterator[data.Finding]:
    if missing:
        yield data.Finding("note", f"incomplete: {missing}", -1)
    yield from of_check
    spills = sass.spills if sass is not None else []
    for place, stores, loads in sorted(spills, key=lambda spill: -spill[1] - spill[2]):
        text = f"spills: {_plural(stores, 'store')} and {_plural(loads, 'load')} of local memory"
        yield data.Finding("warning", text, place, "registers")
    for access, place in zip(banks.accesses, banks.places, strict=True):
        if access.chosen is None or access.ideal is None:
            text = f"wavefronts not known: {access.kind} of {access.tile}, whose lanes are known at run time only"
            yield data.Finding("note", text, place, "shared")
        elif access.chosen > access.ideal:
            text = f"bank conflicts: {access.kind} of {access.tile} takes {float(access.chosen):.4g} wavefronts"
            yield data.Finding("warning", f"{text}, {float(access.ideal):.4g} without conflicts", place, "shared")
    if sass is not None and sass.unknown:
        text = f"operands not known of {', '.join(sass.unknown)}: more registers may be live"
        yield data.Finding("note", text, -1, "registers")


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _provenance(kernel: TileKernel, arch: str, settings: Mapping[str, Any], built: _Built) -> dict[str, str]:
    """Versions, options and hashes, and no time: the same kernel gives the same report."""
    from tiledsl.backends.ptx.assemble import flags

    rows = {
        "target": arch,
        "settings": ", ".join(f"{name}={value}" for name, value in settings.items()) or "none",
        **versions(),
    }
    if built.resources is not None:
        rows["ptxas options"] = " ".join(flags(arch, built.resources.assembler_level))
    rows["kernel meaning"] = kernel.builds.meaning().digest.hex()
    rows["PTX sha256"] = hashlib.sha256(built.ptx.encode()).hexdigest()
    if built.cubin:
        rows["cubin sha256"] = hashlib.sha256(built.cubin).hexdigest()
    return rows
