"""The virtual functions of PyTorch's allocator that have a default, by its headers and by defaults.txt."""

import re
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

HERE = Path(__file__).resolve().parent
# The classes of the allocator, each with its header.
CLASSES = (
    ("CUDAAllocator", "c10/cuda/CUDACachingAllocator.h"),
    ("DeviceAllocator", "c10/core/CachingDeviceAllocator.h"),
    ("Allocator", "c10/core/Allocator.h"),
)


def minor(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def parts(parameters: str) -> Iterator[str]:
    """Returns the types of parameters, without their names and default arguments."""
    for parameter in re.split(r",(?![^<(]*[>)])", parameters):
        kind = re.sub(r"\s*=.*$", "", parameter.strip())
        kind = re.sub(r"(?<=[\w>&*])\s+\w+$", "", kind) if not re.fullmatch(r"(const )?[\w:]+", kind) else kind
        if kind:
            yield re.sub(r"\s+(?=[&*])", "", kind)


def functions(include: Path) -> List[str]:
    """Returns the virtual functions with a default, as `name(types)`, by PyTorch's headers."""
    found = []
    for name, header in CLASSES:
        text = (include / header).read_text(encoding="utf-8")
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
        # 2.8 and earlier have no DeviceAllocator.
        declared = re.search(rf"(?:class|struct) (?:C10\w*_API )?{name}\b[^;{{]*\{{(.*?)\n\}};", text, re.DOTALL)
        if declared is None:
            continue
        body = re.sub(r"=\s*\{[^}]*\}", "", declared[1])
        for one in re.finditer(r"\bvirtual\s+([^;{]*?)(\w+)\s*\(([^;{]*)\)\s*(const)?\s*(= 0;|;|\{)", body):
            if one[5] != "= 0;" and one[1]:
                found.append(f"{one[2]}({', '.join(parts(' '.join(one[3].split())))}){' const' if one[4] else ''}")
    if not found:
        raise SystemExit(f"error: the headers in {include} have no virtual function with a default")
    return found


def listed(version: str) -> Dict[str, str]:
    """Returns the functions of a version, each with what is decided about it, by defaults.txt."""
    known = {}
    for line in (HERE / "defaults.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            first, last, rest = line.split(maxsplit=2)
            name, decision = rest.split(": ", maxsplit=1)
            if minor(first) <= minor(version) and (last == "-" or minor(version) <= minor(last)):
                known[name] = decision
    return known


def undecided(version: str, include: Path) -> List[str]:
    """Returns what is wrong with the list for a version: functions that it lacks, or has too many, and decisions that do not hold."""
    found, known = functions(include), listed(version)
    wrong = [f"PyTorch {version} has {name}: decide about it in defaults.txt" for name in found if name not in known]
    wrong += [f"defaults.txt has {name}, and PyTorch {version} has not" for name in known if name not in found]
    declared = (HERE.parent.parent / "gpu_vmm/_torch_native/allocator.h").read_text(encoding="utf-8")
    for name, decision in known.items():
        has = re.search(rf"\b{name.split('(')[0]}\(", declared) is not None
        if has != decision.startswith("overrides"):
            wrong.append(f"defaults.txt has {name}: {decision}, and allocator.h {'declares it' if has else 'does not'}")
    return wrong
