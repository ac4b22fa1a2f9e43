"""Memory that outlives its program: the clients of a server that keeps regions by name. Linux only.

A program that ends, or is killed, loses its lease and nothing else: the next one opens the region and finds the contents at the same
address::

    client = gpu_vmm.connect("/run/user/1000/gpu-vmm.sock")
    with client.open("model/weights", wait=10) as lease:
        weight = numpy.from_dlpack(lease["output.weight"])
"""

from ._client import Client, connect
from ._layout import Layout, Part, PartDType
from ._lease import Lease, LeaseEvent
from ._part import LeasedPart
from ._pools import set_pool_server

__all__ = ["Client", "Layout", "Lease", "LeaseEvent", "LeasedPart", "Part", "PartDType", "connect", "set_pool_server"]
