"""``python -m gpu_vmm.torch``."""

import sys

from .._torch_command import main

sys.exit(main(sys.argv[1:]))
