"""gpu_vmm_tms.use(), with small modules in place of torch_memory_saver's and the real library, which GPU_VMM_TMS_LIBRARY names."""

import ctypes
import os
import subprocess
import sys
import types
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gpu_vmm_tms  # noqa: E402

LIBRARY = os.environ["GPU_VMM_TMS_LIBRARY"]


def package():
    """Puts the modules that `use` changes into `sys.modules`."""
    made = {name: types.ModuleType(f"torch_memory_saver.{name}") for name in ("utils", "hooks.mode_preload", "hooks.mode_torch", "binary_wrapper")}
    sys.modules["torch_memory_saver"] = types.ModuleType("torch_memory_saver")
    sys.modules["torch_memory_saver.hooks"] = types.ModuleType("torch_memory_saver.hooks")
    for name, module in made.items():
        module.get_binary_path_from_package = lambda stem: "the original"
        sys.modules[f"torch_memory_saver.{name}"] = module

    def signatures(library):
        library.tms_pause.argtypes = library.tms_resume.argtypes = [ctypes.c_char_p]
        library.tms_set_current_tag.argtypes = [ctypes.c_char_p]
        library.tms_set_disk_backup_dir.argtypes = [ctypes.c_char_p]
        library.tms_torch_malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        library.tms_torch_malloc.restype = ctypes.c_void_p
        library.tms_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]

    made["binary_wrapper"]._setup_function_signatures = signatures
    return made


class Use(unittest.TestCase):
    def test_package_finds_library_and_raises_errors(self):
        made = package()
        gpu_vmm_tms.use(LIBRARY)
        for name in ("utils", "hooks.mode_preload", "hooks.mode_torch"):
            self.assertEqual(made[name].get_binary_path_from_package("torch_memory_saver_hook_mode_torch"), os.path.abspath(LIBRARY))
        library = ctypes.CDLL(made["utils"].get_binary_path_from_package(""))
        made["binary_wrapper"]._setup_function_signatures(library)
        library.tms_set_enable_disk_backup(True)
        memory = library.tms_torch_malloc(1 << 20, 0, None)
        self.assertTrue(memory)
        library.tms_set_disk_backup_dir(b"/dev/null/folder")
        with self.assertRaisesRegex(gpu_vmm_tms.Failed, "tms_pause failed"):
            library.tms_pause(b"default")
        library.tms_set_disk_backup_dir(b"/tmp")
        self.assertEqual(library.tms_pause(b"default"), 0)
        self.assertEqual(library.tms_resume(None), 0)
        library.tms_torch_free(memory, 1 << 20, 0, None)

    def test_a_wrong_file_is_refused(self):
        package()
        with self.assertRaises(FileNotFoundError):
            gpu_vmm_tms.use("/nonexistent/libtorch_memory_saver.so")
        with self.assertRaisesRegex(ValueError, "must contain torch_memory_saver"):
            gpu_vmm_tms.use(__file__)


class Environment(unittest.TestCase):
    """Each test reads the settings of a process of its own."""

    CODE = """
import ctypes, os
library = ctypes.CDLL(os.environ["GPU_VMM_TMS_LIBRARY"])
get = [library[f"tms_get_{name}"] for name in ("interesting_region", "enable_cpu_backup", "enable_disk_backup", "retain_cpu_backup")]
for one in get:
    one.restype = ctypes.c_bool
library.tms_get_cpu_backup_backend.restype = ctypes.c_char_p
print(*(one() for one in get), library.tms_get_cpu_backup_backend().decode())
"""

    def settings(self, *values, kind=None):
        """Returns what the process printed: its settings, and its errors."""
        names = ("TMS_INIT_ENABLE", "TMS_INIT_ENABLE_CPU_BACKUP", "TMS_INIT_ENABLE_DISK_BACKUP", "TMS_RETAIN_CPU_BACKUP")
        variables = dict(zip(names, values))
        if kind is not None:
            variables["TMS_INIT_CPU_BACKUP_BACKEND"] = kind
        command = [sys.executable, "-c", self.CODE]
        ended = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
        return ended.stdout.split(), ended.stderr

    def test_the_variables_select_the_first_settings(self):
        self.assertEqual(self.settings(), (["False", "False", "False", "False", "pinned"], ""))
        self.assertEqual(self.settings("1", "true", "TRUE", "yes", kind="mmap"), (["True", "True", "True", "True", "mmap"], ""))
        self.assertEqual(self.settings("YES", "0", "false", "FALSE", kind="pinned"), (["True", "False", "False", "False", "pinned"], ""))
        self.assertEqual(self.settings("no", "NO"), (["False", "False", "False", "False", "pinned"], ""))

    def test_a_wrong_value_is_reported(self):
        settings, errors = self.settings("on", "1", kind="tape")
        self.assertEqual(settings, ["False", "True", "False", "False", "pinned"])
        self.assertIn("TMS_INIT_ENABLE=on counts as 0; use 1, true, yes, 0, false or no", errors)
        self.assertIn("TMS_INIT_CPU_BACKUP_BACKEND=tape counts as pinned; use pinned or mmap", errors)
        self.assertEqual(errors.count("\n"), 2)


if __name__ == "__main__":
    unittest.main()
