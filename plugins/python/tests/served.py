"""A server in a process of its own, for tests of its clients. The variable GPU_VMM_TEST_SERVER is its command, such as `gpu-vmm serve`."""

import os
import shlex
import subprocess
import tempfile
import time

import gpu_vmm
from support import NAME, Case

COMMAND = shlex.split(os.environ.get("GPU_VMM_TEST_SERVER", ""))
WHY_NOT = "GPU_VMM_TEST_SERVER names no server"


class Served(Case):
    """Each test has a server of its own, with a budget in bytes."""

    budget = 64 << 20

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "socket")
        self.server = subprocess.Popen([*COMMAND, "--socket", self.path, "--budget", str(self.budget)], stderr=subprocess.DEVNULL)
        self.addCleanup(self.end_server)
        self.backend = gpu_vmm.open(NAME)
        deadline = time.monotonic() + 20
        while True:
            try:
                self.client = gpu_vmm.connect(self.path, self.backend)
                break
            except (gpu_vmm.NoListener, gpu_vmm.StaleSocket):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.005)

    def end_server(self):
        self.server.kill()
        self.server.wait()

    def until_clients(self, count):
        """Waits until the server has this number of clients with a lease."""
        deadline = time.monotonic() + 20
        while len(self.client.clients()) != count:
            self.assertLess(time.monotonic(), deadline, self.client.status())
            time.sleep(0.005)

    def publish(self, name, contents, parts=None, **options):
        """Creates and commits a region. Returns its lease."""
        lease = self.client.create(name, len(contents), **options)
        lease.region.write(contents)
        lease.commit(gpu_vmm.serve.Layout(parts or {}))
        return lease

    def elsewhere(self, code, **options):
        """Runs code in another process, which has a `client`. Returns its output."""
        setup = f"import gpu_vmm, os, signal, sys\nclient = gpu_vmm.connect({self.path!r}, gpu_vmm.open({NAME!r}))\n"
        return self.script(setup + code, **options)
