"""What a user's compiler, linker and loader see."""
import os
import re
import shutil
import subprocess

import pytest

from job import BUILD, ROOT

HEADER = os.path.join(ROOT, "worker", "tally.h")
USE = """
#include "worker/tally.h"
int main(void)
{
    tally_tensor_options options = TALLY_TENSOR_OPTIONS_INIT;
    tally *ctx = 0;
    tally_tensor *tensor = 0;
    tally_request *request = 0;
    float data[4] = { 0 };
    options.op = TALLY_OP_AVERAGE;
    if (tally_open(0, &ctx) != TALLY_OK)
        return 1;
    if (tally_declare(ctx, "grad", TALLY_DTYPE_F32, 4, &options, &tensor) != TALLY_OK)
        return 1;
    if (tally_push_pull(tensor, data, data, TALLY_PRIORITY_DEFAULT, &request) != TALLY_OK)
        return 1;
    if (tally_wait(&request, -1) != TALLY_OK || tally_undeclare(&tensor) != TALLY_OK)
        return 1;
    return tally_close(ctx) != TALLY_OK;
}
"""


def output(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                          stdin=subprocess.DEVNULL)
    assert done.returncode == 0, "%s\n%s" % (" ".join(command), done.stdout.decode())
    return done.stdout.decode()


def library():
    return os.path.join(BUILD, "libtally.so")


@pytest.mark.parametrize("compiler, language, standard", [
    ("gcc", "c", "c99"), ("gcc", "c", "c11"), ("g++", "c++", "c++11"), ("g++", "c++", "c++17"),
    ("clang", "c", "c99"), ("clang++", "c++", "c++11"),
])
def test_the_header_compiles_without_a_warning(compiler, language, standard, tmp_path):
    if not shutil.which(compiler):
        pytest.skip("%s is not installed" % compiler)
    source = tmp_path / ("use." + ("c" if language == "c" else "cc"))
    source.write_text(USE)
    assert output(compiler, "-std=" + standard, "-pedantic-errors", "-Wall", "-Wextra", "-Werror", "-I", ROOT,
                  "-fsyntax-only", str(source)) == ""


@pytest.mark.parametrize("linked", ["shared", "static"])
def test_a_program_of_either_language_runs_with_the_library(linked, tmp_path):
    if re.search(r"lib(asan|tsan|ubsan)", output("readelf", "-d", library())):
        pytest.skip("the compiler's options would have to be the library's")
    libraries = ["-L", BUILD, "-ltally", "-Wl,-rpath," + BUILD] if linked == "shared" else \
        [os.path.join(BUILD, "libtally.a")] + output("pkg-config", "--libs", "libzmq").split() + ["-lm"]
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("DMLC_", "BYTEPS_", "TALLY_"))}
    for compiler, suffix in (("gcc", "c"), ("g++", "cc")):
        source = tmp_path / ("use." + suffix)
        source.write_text(USE)
        built = str(tmp_path / "use")
        output(compiler, "-pthread", "-I", ROOT, "-o", built, str(source), *libraries)
        assert subprocess.run([built], env=environment, timeout=20, check=False).returncode == 0


def declared():
    """Every function that the header offers."""
    with open(HEADER) as file:
        text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.DOTALL)
    return {match for match in re.findall(r"TALLY_API[^;]*?\b(tally_\w+)\(", text)}


def test_the_library_exports_what_the_header_declares_and_nothing_else():
    symbols = {line.split()[-1] for line in output("nm", "-D", "--defined-only", library()).splitlines()}
    symbols = {symbol for symbol in symbols if not re.match(r"__(asan|tsan|ubsan|sanitizer|odr_asan)", symbol)}
    assert symbols == declared()
    assert len(symbols) >= 20


def test_the_library_has_its_soname():
    assert re.search(r"SONAME\).*\[libtally\.so\.0\]", output("readelf", "-d", library()))
    assert os.path.realpath(library()).endswith("libtally.so.0.1.0")


def test_the_library_needs_no_device_and_little_else():
    needed = set(re.findall(r"NEEDED\).*\[(.+?)\.so", output("readelf", "-d", library())))
    allowed = {"libzmq", "libc", "libm", "libpthread", "ld-linux-x86-64", "libhwloc", "libnuma",
               "libasan", "libtsan", "libubsan"}
    assert "libzmq" in needed
    assert needed <= allowed, needed
    assert not re.search(r"cuda|nccl|nvidia", output("ldd", library()), re.IGNORECASE)
