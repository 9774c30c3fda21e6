"""Device profiles: published bytes, bandwidth and arithmetic peaks, each with its source.

Peaks are dense (no structured sparsity). `float32` is the default precision of frameworks: the vector
units on GPUs, one bfloat16 pass on TPUs. Data sheets do not list the overhead of a kernel: 2 µs is an
assumption, the order of a launch and drain on a GPU queue; measured costs override it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from graph.ir import DTYPE_BITS

GIB = 2**30
_LAUNCH = 2e-6
#: Links to host memory: both directions at once, or one at a time.
DUPLEX, SHARED = "duplex", "shared"
MAX_RATE = 1e30  # largest rate; the smallest is 1 / MAX_RATE. Keeps times of the largest graphs finite and above 0


@dataclass(frozen=True, eq=False, slots=True)
class DeviceProfile:
    """One accelerator. Bytes are those of the data sheet; a request's `reserve` covers the driver's share."""

    name: str
    memory_bytes: int
    bytes_per_second: float  # to and from its main memory
    flops_per_second: Mapping[str, float]  # per dtype; float32 is required
    kernel_seconds: float = _LAUNCH  # of one empty kernel
    source: str = ""
    host_bytes_per_second: float = 0.0  # of the link to host memory, each way; 0: unknown
    fetch_bytes_per_second: float = 0.0  # of the link from host memory, where it differs; 0: as to it
    host_link: str = DUPLEX  # or SHARED: copies one direction at a time
    link_bytes_per_second: float = 0.0  # of the link to other devices, each way; 0: unknown
    link_latency: float = 0.0  # seconds of one empty message on that link

    def peak(self, dtype: str) -> float:
        """Arithmetic operations per second for a dtype; the float32 peak if none is published."""
        return self.flops_per_second.get(dtype) or self.flops_per_second["float32"]


def _device(
    name: str,
    gib: float,
    gigabytes_per_second: float,
    source: str,
    kernel_seconds: float = _LAUNCH,
    host: float = 0,
    **tera: float,
) -> DeviceProfile:
    """A profile from data-sheet units: GiB, GB/s, TFLOPS; `half` stands for both 16-bit dtypes.

    `host` is GB/s one way of the link to the host: half of the bidirectional figure. Profiles without it need a number
    from the request: the link of an MI250X depends on the node (PCIe or Infinity Fabric, per die), those of TPUs have
    no source here, and `cpu-reference` has its memory on the host.
    """
    half, quarter = tera.pop("half", None), tera.pop("float8", None)
    if half is not None:
        tera |= {"float16": half, "bfloat16": half}
    if quarter is not None:
        tera |= {"float8e4m3fn": quarter, "float8e5m2": quarter}
    peaks = MappingProxyType({dtype: number * 1e12 for dtype, number in tera.items()})
    return DeviceProfile(name, int(gib * GIB), gigabytes_per_second * 1e9, peaks, kernel_seconds, source, host * 1e9)


_V100 = "NVIDIA V100 Tensor Core GPU data sheet, January 2020, SXM2"
_A100 = "NVIDIA A100 Tensor Core GPU data sheet, June 2021, SXM"
_ADA = "NVIDIA Ada GPU Architecture white paper, version 2.1, appendix A; float32 accumulation"
_AMPERE = "NVIDIA Ampere GA102 GPU Architecture white paper, version 2, appendix A; float32 accumulation"

DEVICES: Mapping[str, DeviceProfile] = MappingProxyType(
    {
        device.name: device
        for device in (
            _device("a100-80gb", 80, 2039, _A100, host=32, float64=9.7, float32=19.5, half=312, int8=624),
            _device("a100-40gb", 40, 1555, _A100, host=32, float64=9.7, float32=19.5, half=312, int8=624),
            _device(
                "h100-80gb",
                80,
                3350,
                "NVIDIA H100 Tensor Core GPU data sheet, 2023, SXM5",
                host=64,
                float64=34,
                float32=67,
                half=989.5,
                float8=1979,
                int8=1979,
            ),
            _device(
                "h200-141gb",
                141,
                4800,
                "NVIDIA H200 Tensor Core GPU data sheet, 2024, SXM",
                host=64,
                float64=34,
                float32=67,
                half=989.5,
                float8=1979,
                int8=1979,
            ),
            _device("v100-32gb", 32, 900, _V100, host=16, float64=7.8, float32=15.7, float16=125),
            _device("v100-16gb", 16, 900, _V100, host=16, float64=7.8, float32=15.7, float16=125),
            _device(
                "a10", 24, 600, "NVIDIA A10 Tensor Core GPU data sheet, 2021", host=32, float32=31.2, half=125, int8=250
            ),
            _device(
                "l4",
                24,
                300,
                "NVIDIA L4 Tensor Core GPU data sheet, 2023",
                host=32,
                float32=30.3,
                half=121,
                float8=242.5,
                int8=242.5,
            ),
            _device(
                "l40s",
                48,
                864,
                "NVIDIA L40S data sheet, 2023",
                host=32,
                float32=91.6,
                half=362.05,
                float8=733,
                int8=733,
            ),
            _device("rtx4090", 24, 1008, _ADA, host=32, float32=82.6, half=165.2, float8=330.3, int8=660.6),
            _device("rtx3090", 24, 936, _AMPERE, host=32, float32=35.6, half=71, int8=284),
            _device(
                "mi250x",
                128,
                3276.8,
                "AMD Instinct MI250X data sheet, 2021",
                float64=47.9,
                float32=47.9,
                half=383,
                int8=383,
            ),
            _device(
                "mi300x",
                192,
                5300,
                "AMD Instinct MI300X data sheet, 2023",
                host=64,
                float64=81.7,
                float32=163.4,
                half=1307.4,
                float8=2614.9,
                int8=2614.9,
            ),
            _device("tpu-v4", 32, 1200, "Jouppi et al., TPU v4, ISCA 2023, table 4", float32=275, half=275, int8=275),
            _device("tpu-v5e", 16, 819, "Google Cloud TPU v5e documentation, 2023", float32=197, half=197, int8=393),
            _device("cpu-reference", 16, 10, "an assumption: one core under numpy", 2e-6, float64=0.02, float32=0.04),
        )
    }
)
DEFAULT_DEVICE = "a100-80gb"
#: Fields of a device object.
FIELDS = (
    "name",
    "like",
    "bandwidth",
    "flops",
    "kernel_seconds",
    "memory_bytes",
    "host_bandwidth",
    "fetch_bandwidth",
    "host_link",
    "link_bandwidth",
    "link_latency",
)
#: Fields that are one number; those of them that may be 0.
RATES = (
    "bandwidth",
    "kernel_seconds",
    "memory_bytes",
    "host_bandwidth",
    "fetch_bandwidth",
    "link_bandwidth",
    "link_latency",
)
MAY_BE_ZERO = frozenset({"kernel_seconds", "link_latency"})


def device_named(name: str) -> DeviceProfile:
    """The profile called `name`. Raises ValueError listing the known names."""
    try:
        return DEVICES[name]
    except KeyError:
        raise ValueError(f"device {name!r} is not known; name one of {', '.join(DEVICES)}") from None


def resolve_device(given: str | Mapping[str, Any]) -> DeviceProfile:
    """A profile by name, or from an object. Raises ValueError naming the invalid fields.

    resolve_device({"bandwidth": 2.0e12, "flops": {"float32": 2.0e13}, "memory_bytes": 80 * 2**30})
    `bandwidth` is in bytes per second; `flops` is one number for all dtypes, or one per dtype with float32
    required; `kernel_seconds`, `memory_bytes`, `host_bandwidth` (bytes per second to host memory, and from it unless
    `fetch_bandwidth` says otherwise), `host_link` ("duplex", or "shared": one direction at a time), `link_bandwidth`
    (bytes per second from a device to the next one, for collectives), `link_latency` (seconds of an empty message
    between them) and `name` are optional; `like` names a profile that provides the defaults.
    """
    if isinstance(given, str):
        return device_named(given)
    if faults := device_faults(given):
        raise ValueError("; ".join(text for _, text in faults))
    like = DEVICES[given["like"]] if "like" in given else None
    base = like or DEVICES[DEFAULT_DEVICE]
    flops = given.get("flops", base.flops_per_second)
    return DeviceProfile(
        given.get("name", "custom"),
        int(given.get("memory_bytes", base.memory_bytes)),
        float(given.get("bandwidth", base.bytes_per_second)),
        MappingProxyType(
            {dtype: float(flops[dtype]) for dtype in flops} if isinstance(flops, Mapping) else {"float32": float(flops)}
        ),
        float(given.get("kernel_seconds", base.kernel_seconds)),
        "given",
        float(given.get("host_bandwidth", like.host_bytes_per_second if like else 0)),
        float(given.get("fetch_bandwidth", like.fetch_bytes_per_second if like else 0)),
        given.get("host_link", like.host_link if like else DUPLEX),
        float(given.get("link_bandwidth", like.link_bytes_per_second if like else 0)),
        float(given.get("link_latency", like.link_latency if like else 0)),
    )


def device_faults(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(field, what is wrong with it and the remedy) for each fault of a device object.

    device_faults({"like": "a100-80gb", "bandwidth": 0})    # [("bandwidth", "bandwidth is 0; give a finite number …")]
    """
    faults = [
        (str(key), f"device has a field {key!r:.80}; use {', '.join(FIELDS)}") for key in given if key not in FIELDS
    ]
    faults += [
        (key, f"{key} is {given[key]!r:.80}; give a name")
        for key in ("name", "like")
        if key in given and not isinstance(given[key], str)
    ]
    if isinstance(given.get("like"), str) and given["like"] not in DEVICES:
        faults.append(("like", f"device {given['like']!r:.80} is not known; name one of {', '.join(DEVICES)}"))
    faults += [
        (key, f"device has no {key}; give {key} or name a profile with `like`")
        for key in ("bandwidth", "flops")
        if key not in given and "like" not in given
    ]
    faults += [(key, text) for key in RATES if key in given and (text := _fault(key, given[key], key in MAY_BE_ZERO))]
    faults += _fault_of_flops(given["flops"]) if "flops" in given else []
    if given.get("host_link", DUPLEX) not in (DUPLEX, SHARED):
        use = f"use {DUPLEX} (both directions at once) or {SHARED} (one at a time)"
        faults.append(("host_link", f"host_link is {given['host_link']!r:.80}; {use}"))
    if "link_latency" in given and "link_bandwidth" not in given:
        text = "link_latency has no link_bandwidth beside it; give the bytes per second of the link as well"
        faults.append(("link_latency", text))
    return faults


def _fault_of_flops(given: Any) -> list[tuple[str, str]]:
    if not isinstance(given, Mapping):
        text = _fault("flops", given)
        return [("flops", text)] if text else []
    unknown = [dtype for dtype in given if dtype not in DTYPE_BITS]
    faults = [
        (f"flops.{dtype}", f"flops has a dtype {dtype!r:.80}; use one of {', '.join(DTYPE_BITS)}") for dtype in unknown
    ]
    if "float32" not in given:
        faults.append(("flops", "flops has no float32, which stands in for dtypes not listed; add it"))
    known = [f"flops.{dtype}" for dtype in given if dtype in DTYPE_BITS]
    return [*faults, *((name, text) for name in known if (text := _fault(name, given[name.removeprefix("flops.")])))]


def _fault(name: str, number: Any, zero: bool = False) -> str:
    fits = isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number < float("inf")
    if not fits or (number == 0 and not zero):
        return f"{name} is {number!r:.80}; give a finite number {'of at least' if zero else 'above'} 0"
    if number and not 1 / MAX_RATE <= number <= MAX_RATE:
        return f"{name} is {number!r:.80}; give one between {1 / MAX_RATE:g} and {MAX_RATE:g}"
    return ""
