# SPDX-License-Identifier: BSD-3-Clause
"""Kernels, streams, graphs and the simulated compiler."""

from __future__ import annotations

import re
from collections.abc import Callable

from elftools.elf.elffile import ELFFile

from tests.support.sim import LIBRARIES, ROOT, Talker, run

Machine = Callable[..., dict[str, str]]
Talk = Callable[[dict[str, str], str], Talker]


def test_vectors_are_added(machine: Machine) -> None:
    run(
        machine(),
        """
        device = use()
        stream = device.create_stream()
        kernel = compile('''extern "C" __global__ void add(const float *a, const float *b, float *c, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) c[i] = a[i] + b[i];
        }''').get_kernel("add")
        assert list(kernel.arguments_info)[0].size == 8 and kernel.num_arguments == 4
        n = 100_003
        a = np.random.default_rng(1).standard_normal(n, np.float32)
        x, y, z = (ok(driver.cuMemAlloc(a.nbytes)) for _ in range(3))
        write(x, a)
        write(y, a[::-1].copy())
        config = LaunchConfig(grid=(n + 127) // 128, block=128)
        launch(stream, config, kernel, np.uint64(int(x)), np.uint64(int(y)), np.uint64(int(z)), np.int32(n))
        stream.sync()
        assert (read(z, n) == a + a[::-1]).all()
        """,
    )


def test_barriers_shared_memory_atomics_and_templates(machine: Machine) -> None:
    run(
        machine(),
        """
        device = use()
        stream = device.create_stream()
        module = compile('''
        namespace deep { namespace er {
        __constant__ float factor[2];
        /* __global__ void commented(int); */
        template <typename T> __global__ void __launch_bounds__(256) sum(const T *x, T *out, int n) {
            __shared__ T tile[256];
            extern __shared__ __align__(16) T extra[];
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            tile[threadIdx.x] = i < n ? x[i] : T(0);
            extra[threadIdx.x] = T(factor[1]);
            __syncthreads();
            for (int k = 128; k > 0; k >>= 1) {
                if (threadIdx.x < k) tile[threadIdx.x] += tile[threadIdx.x + k];
                __syncthreads();
            }
            if (threadIdx.x == 0) atomicAdd(out, tile[0] * extra[255]);
        }
        } }
        ''', "deep::er::sum<double>", "deep::er::sum<int>", "&deep::er::factor")
        n = 10_000
        factor = np.array([0, 3], np.float32)
        for kind, name in ((np.float64, "deep::er::sum<double>"), (np.int32, "deep::er::sum<int>")):
            data = np.arange(n, dtype=kind)
            x, out = ok(driver.cuMemAlloc(data.nbytes)), ok(driver.cuMemAlloc(8))
            write(x, data)
            ok(driver.cuMemsetD32(out, 0, 2))
            lowered = module.symbol_mapping["&deep::er::factor"]
            library = driver.CUlibrary(int(module.handle))
            address, size = ok(driver.cuLibraryGetGlobal(library, lowered))
            assert size == 8
            write(address, factor)
            config = LaunchConfig(grid=(n + 255) // 256, block=256, shmem_size=256 * data.itemsize)
            launch(stream, config, module.get_kernel(name), np.uint64(int(x)), np.uint64(int(out)), np.int32(n))
            stream.sync()
            assert read(out, 1, kind)[0] == 3 * data.sum(), name
        """,
    )


def test_compile_error_names_the_line(machine: Machine) -> None:
    run(
        machine(),
        """
        use()
        try:
            compile('__global__ void broken(int *x) {\\n    *x = undeclared;\\n}\\n')
        except Exception as problem:
            text = str(problem)
            assert "NVRTC_ERROR_COMPILATION" in text and "undeclared" in text and ":2:" in text, text
        else:
            raise AssertionError("it compiled")
        """,
    )


def test_missing_compiler_is_named(machine: Machine) -> None:
    environment = machine(cxx="no-such-compiler")
    done = run(environment, "use()\ncompile(ADD)", check=False)
    assert done.returncode != 0
    assert "no-such-compiler" in done.stderr
    assert "apt install g++" in done.stderr


def test_foreign_images_are_refused(machine: Machine) -> None:
    run(
        machine(),
        """
        use()
        assert error(driver.cuModuleLoadData(b".version 8.0\\n.target sm_90\\n" + bytes(64))) == 200
        cubin = bytearray(128)
        cubin[:5] = b"\\x7fELF\\x02"
        cubin[18] = 190
        assert error(driver.cuModuleLoadData(bytes(cubin))) == 209
        """,
    )


def test_streams_keep_their_order(machine: Machine) -> None:
    """Work in other streams runs beside, events and the legacy stream order it."""
    run(
        machine(kernel_ns=20_000_000),
        """
        use()
        kernel = compile(ADD).get_kernel("add")
        function = driver.CUfunction(int(driver.cuKernelGetFunction(driver.CUkernel(int(kernel.handle)))[1]))
        x = ok(driver.cuMemAlloc(4))
        def add(stream):
            values = (ctypes.c_uint64(int(x)), ctypes.c_float(1), ctypes.c_int(1))
            pointers = (ctypes.c_void_p * 3)(*[ctypes.addressof(v) for v in values])
            ok(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, ctypes.addressof(pointers), 0))
        NONE = driver.CUstream(0)
        blocking = ok(driver.cuStreamCreate(0))
        apart = ok(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        ok(driver.cuMemsetD32(x, 0, 1))
        host = np.full(3, -1, np.float32)
        # The legacy stream waits for the blocking one, not the blocking one for the other.
        add(blocking)
        ok(driver.cuMemcpyDtoHAsync(host.ctypes.data, x, 4, NONE))
        ok(driver.cuStreamSynchronize(NONE))
        assert host[0] == 1
        # An event carries the order to a stream that has none of its own.
        event = ok(driver.cuEventCreate(0))
        add(blocking)
        ok(driver.cuEventRecord(event, blocking))
        assert error(driver.cuEventQuery(event)) == 600
        assert error(driver.cuStreamQuery(blocking)) == 600
        ok(driver.cuStreamWaitEvent(apart, event, 0))
        ok(driver.cuMemcpyDtoHAsync(host.ctypes.data + 4, x, 4, apart))
        ok(driver.cuStreamSynchronize(apart))
        assert host[1] == 2 and error(driver.cuEventQuery(event)) == 0
        # An event of the whole context is over when all streams are.
        whole = ok(driver.cuEventCreate(0))
        add(apart)
        ok(driver.cuCtxRecordEvent(ok(driver.cuCtxGetCurrent()), whole))
        assert error(driver.cuEventQuery(whole)) == 600
        ok(driver.cuEventSynchronize(whole))
        assert read(x, 1)[0] == 3
        assert ok(driver.cuEventElapsedTime(event, whole)) > 0
        """,
    )


def test_each_thread_has_its_default_stream(machine: Machine) -> None:
    """Threads' default streams run beside each other; the legacy one waits for all of them."""
    run(
        machine(kernel_ns=5_000_000),
        """
        import threading
        from cuda.core import PER_THREAD_DEFAULT_STREAM
        device = use()
        kernel = compile(ADD).get_kernel("add")
        blocks = [ok(driver.cuMemAlloc(4)) for _ in range(4)]
        for block in blocks:
            ok(driver.cuMemsetD32(block, 0, 1))
        done = []
        def work(block):
            device.set_current()
            for _ in range(10):
                run_add(PER_THREAD_DEFAULT_STREAM, kernel, block, 1)
            assert error(driver.cuStreamQuery(driver.CUstream(2))) == 600
            done.append(block)
        threads = [threading.Thread(target=work, args=(block,)) for block in blocks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == 4
        assert [read(block, 1)[0] for block in blocks] == [10] * 4
        """,
    )


def test_graphs_are_replayed(machine: Machine) -> None:
    run(
        machine(),
        """
        device = use()
        stream = device.create_stream()
        kernel = compile(ADD).get_kernel("add")
        x = ok(driver.cuMemAlloc(1024))
        host = np.full(256, -1, np.float32)
        raw = driver.CUstream(int(stream.handle))
        ok(driver.cuStreamBeginCapture(raw, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
        ok(driver.cuMemsetD32Async(x, 0, 256, raw))
        for _ in range(5):
            run_add(stream, kernel, x, 256, 2)
        ok(driver.cuMemcpyDtoHAsync(host.ctypes.data, x, 1024, raw))
        graph = ok(driver.cuStreamEndCapture(raw))
        assert (host == -1).all(), "a capture only records"
        assert ok(driver.cuGraphGetNodes(graph, 16))[1] == 7
        replay = ok(driver.cuGraphInstantiate(graph, 0))
        ok(driver.cuGraphDestroy(graph))
        for _ in range(3):
            host[:] = -1
            ok(driver.cuGraphLaunch(replay, raw))
            stream.sync()
            assert (host == 10).all()
        """,
    )


def test_graphs_and_allocations_of_cuda_core_work(machine: Machine) -> None:
    run(
        machine(),
        """
        device = use()
        stream = device.create_stream()
        kernel = compile(ADD).get_kernel("add")
        block = device.allocate(1024, stream=stream)
        block.fill(0, stream=stream)
        builder = stream.create_graph_builder()
        builder.begin_building()
        for _ in range(3):
            launch(builder, LaunchConfig(grid=1, block=256), kernel, block, np.float32(1), np.int32(256))
        graph = builder.end_building().complete()
        for _ in range(2):
            graph.launch(stream)
        stream.sync()
        assert (read(int(block.handle), 256) == 6).all()
        """,
    )


def test_pageable_memory_is_read_before_the_call_returns(machine: Machine) -> None:
    run(
        machine(kernel_ns=50_000_000),
        """
        device = use()
        stream = device.create_stream()
        kernel = compile(ADD).get_kernel("add")
        raw = driver.CUstream(int(stream.handle))
        x = ok(driver.cuMemAlloc(4096))
        data = np.arange(1024, dtype=np.float32)
        run_add(stream, kernel, x, 1024)
        ok(driver.cuMemcpyHtoDAsync(x, data.ctypes.data, data.nbytes, raw))
        data[:] = -1
        run_add(stream, kernel, x, 1024)
        stream.sync()
        assert (read(x, 1024) == np.arange(1, 1025)).all()
        """,
    )


def test_synchronising_a_capture_invalidates_it(machine: Machine) -> None:
    run(
        machine(),
        """
        use()
        relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        for synchronise in (
            lambda stream, event: driver.cuCtxSynchronize(),
            lambda stream, event: driver.cuStreamSynchronize(stream),
            lambda stream, event: driver.cuCtxRecordEvent(ok(driver.cuCtxGetCurrent()), event),
        ):
            stream, event = ok(driver.cuStreamCreate(1)), ok(driver.cuEventCreate(0))
            ok(driver.cuStreamBeginCapture(stream, relaxed))
            assert error(synchronise(stream, event)) == 900
            assert error(driver.cuStreamEndCapture(stream)) == 901
            ok(driver.cuStreamSynchronize(stream))
        stream = ok(driver.cuStreamCreate(1))
        ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
        assert error(driver.cuMemAlloc(64)) == 900
        assert error(driver.cuStreamEndCapture(stream)) == 901
        """,
    )


def test_the_legacy_stream_waits_for_no_event_during_a_capture(machine: Machine) -> None:
    run(
        machine(),
        """
        use()
        relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        stream, event = ok(driver.cuStreamCreate(0)), ok(driver.cuEventCreate(0))
        ok(driver.cuEventRecord(event, ok(driver.cuStreamCreate(1))))
        ok(driver.cuEventSynchronize(event))
        ok(driver.cuStreamBeginCapture(stream, relaxed))
        assert error(driver.cuStreamWaitEvent(0, event, 0)) == 906, "though it has passed"
        assert error(driver.cuStreamEndCapture(stream)) == 901
        """,
    )


def test_the_child_of_a_fork_gets_an_error(machine: Machine) -> None:
    run(
        machine(),
        """
        device = use()
        device.create_stream().sync()
        before = ok(driver.cuMemGetInfo())
        pid = os.fork()
        if pid == 0:
            os._exit(error(driver.cuCtxSynchronize()))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        assert ok(driver.cuMemGetInfo()) == before
        """,
    )


def test_entry_points_are_found_by_version(machine: Machine) -> None:
    run(
        machine(),
        """
        use()
        def find(name, version, flags=0):
            address, status = ok(driver.cuGetProcAddress(name, version, flags))
            return int(address), int(status)
        library = ctypes.CDLL("libcuda.so.1")
        def exported(name):
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        assert find(b"cuMemAlloc", 13000) == (exported("cuMemAlloc_v2"), 0)
        assert find(b"cuLaunchKernel", 13000) == (exported("cuLaunchKernel"), 0)
        assert find(b"cuLaunchKernel", 13000, 2) == (exported("cuLaunchKernel_ptsz"), 0)
        assert find(b"cuLaunchKernel", 4000, 2) == (0, 2)
        assert find(b"cuStreamGetCaptureInfo", 12000) == (exported("cuStreamGetCaptureInfo_v2"), 0)
        assert find(b"cuNoSuchThing", 13000) == (0, 1)
        """,
    )


def test_every_exported_function_is_found_by_name() -> None:
    """``symbols.def`` lists what the library exports, no more and no less."""
    text = (ROOT / "csrc" / "sim" / "symbols.def").read_text()
    listed = {match[1] for match in re.finditer(r"^SYMBOL\(.*, (\w+)\)$", text, re.MULTILINE)}
    with (LIBRARIES / "libcuda.so.1").open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        exported = {
            symbol.name
            for symbol in symbols
            if symbol["st_shndx"] != "SHN_UNDEF" and re.match(r"cu[A-Z]", symbol.name)
        }
    assert listed == exported


def test_kernels_of_two_processes_take_turns(machine: Machine, talk: Talk) -> None:
    environment = machine()
    module = str(ROOT / "jupyter_gpushare/lib/bench/empty.so").encode()
    code = f"""
    use()
    module = ok(driver.cuModuleLoad({module!r}))
    kernel = ok(driver.cuModuleGetFunction(module, b"empty"))
    start, end = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
    say()
    seconds = float(sys.stdin.readline())
    ctypes.CDLL("libcuda.so.1").gpushare_sim_duration(ctypes.c_uint64(int(seconds * 1e9)))
    began = time.monotonic()
    ok(driver.cuEventRecord(start, None))
    ok(driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, 0, 0))
    ok(driver.cuEventRecord(end, None))
    """
    long = talk(
        environment,
        code
        + """
    while not counters().kernel_ns:
        time.sleep(1e-3)
    say()
    hear()
    ran, passed = counters().kernel_ns / 1e9, time.monotonic() - began
    assert ran + 0.1 <= passed < seconds, (ran, passed)
    say(str(error(driver.cuEventQuery(end))))
    hear()
    """,
    )
    short = talk(
        environment,
        code
        + """
    ok(driver.cuEventSynchronize(end))
    passed, took = ok(driver.cuEventElapsedTime(start, end)) / 1e3, counters().kernel_ns / 1e9
    assert seconds <= took <= passed + 1e-3, (seconds, took, passed)
    say(str(passed))
    """,
    )
    assert (long.heard(), short.heard()) == ("ready", "ready")
    long.tell("60")
    assert long.heard() == "ready"
    short.tell("0.1")
    assert float(short.heard()) >= 0.1
    # The short one ran within the long one's time, and took that of it.
    long.tell()
    assert long.heard() == "600", "the long kernel still runs"
    long.kill()
