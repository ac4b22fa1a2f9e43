"""gpu_vmm_tms.use(), with small modules in place of torch_memory_saver's and the real library, which GPU_VMM_TMS_LIBRARY names."""

import ctypes
import os
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
    def test_the_package_finds_the_library_and_errors_are_raised(self):
        made = package()
        gpu_vmm_tms.use(LIBRARY)
        for name in ("utils", "hooks.mode_preload", "hooks.mode_torch"):
            self.assertEqual(made[name].get_binary_path_from_package("torch_memory_saver_hook_mode_torch"), os.path.abspath(LIBRARY))
        library = ctypes.CDLL(made["utils"].get_binary_path_from_package(""))
        made["binary_wrapper"]._setup_function_signatures(library)
        library.tms_set_enable_disk_backup(True)
        memory = library.tms_torch_malloc(1 << 20, 0, None)
        self.assertTrue(memory)
        library.tms_set_disk_backup_dir(b"/nonexistent/folder")
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


if __name__ == "__main__":
    unittest.main()
