// SPDX-License-Identifier: BSD-3-Clause
// What CUDA C++ source finds when the simulated NVRTC compiles it for the host: the language's keywords, built-in
// variables, vector types, barriers and atomics. Put before every source; C++17.
#pragma once

#include <climits>
#include <cmath>
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <tuple>
#include <type_traits>
#include <ucontext.h>
#include <utility>

#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __CUDA_ARCH__ GPUSHARE_SIM_CUDA_ARCH
#define __host__
#define __device__
#define __global__ __attribute__((visibility("default")))
#define __constant__ __attribute__((visibility("default")))
#define __managed__
#define __grid_constant__
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __cluster_dims__(...)

#define GPUSHARE_SIM_VECTOR(type, name)                                                                                \
    struct name##1                                                                                                     \
    {                                                                                                                  \
        type x;                                                                                                        \
    };                                                                                                                 \
    struct alignas(2 * sizeof(type)) name##2                                                                           \
    {                                                                                                                  \
        type x, y;                                                                                                     \
    };                                                                                                                 \
    struct name##3                                                                                                     \
    {                                                                                                                  \
        type x, y, z;                                                                                                  \
    };                                                                                                                 \
    struct alignas(4 * sizeof(type) < 16 ? 4 * sizeof(type) : 16) name##4                                              \
    {                                                                                                                  \
        type x, y, z, w;                                                                                               \
    };                                                                                                                 \
    static inline name##1 make_##name##1(type x)                                                                       \
    {                                                                                                                  \
        return {x};                                                                                                    \
    }                                                                                                                  \
    static inline name##2 make_##name##2(type x, type y)                                                               \
    {                                                                                                                  \
        return {x, y};                                                                                                 \
    }                                                                                                                  \
    static inline name##3 make_##name##3(type x, type y, type z)                                                       \
    {                                                                                                                  \
        return {x, y, z};                                                                                              \
    }                                                                                                                  \
    static inline name##4 make_##name##4(type x, type y, type z, type w)                                               \
    {                                                                                                                  \
        return {x, y, z, w};                                                                                           \
    }

GPUSHARE_SIM_VECTOR(signed char, char)
GPUSHARE_SIM_VECTOR(unsigned char, uchar)
GPUSHARE_SIM_VECTOR(short, short)
GPUSHARE_SIM_VECTOR(unsigned short, ushort)
GPUSHARE_SIM_VECTOR(int, int)
GPUSHARE_SIM_VECTOR(unsigned int, uint)
GPUSHARE_SIM_VECTOR(long, long)
GPUSHARE_SIM_VECTOR(unsigned long, ulong)
GPUSHARE_SIM_VECTOR(long long, longlong)
GPUSHARE_SIM_VECTOR(unsigned long long, ulonglong)
GPUSHARE_SIM_VECTOR(float, float)
GPUSHARE_SIM_VECTOR(double, double)

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

static thread_local uint3 threadIdx, blockIdx;
static thread_local dim3 blockDim, gridDim;
static constexpr int warpSize = 32;

template <typename A, typename B> static inline std::common_type_t<A, B> min(A a, B b)
{
    std::common_type_t<A, B> c = a, d = b;
    return d < c ? d : c;
}
template <typename A, typename B> static inline std::common_type_t<A, B> max(A a, B b)
{
    std::common_type_t<A, B> c = a, d = b;
    return c < d ? d : c;
}
template <typename T> static inline T __ldg(const T *pointer)
{
    return *pointer;
}
static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
static inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
// The C library has functions of these names.
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __powf(x, y) powf(x, y)
static inline float __fdividef(float x, float y)
{
    return x / y;
}
static inline float __fmaf_rn(float x, float y, float z)
{
    return fmaf(x, y, z);
}
static inline float __int_as_float(int x)
{
    float y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static inline int __float_as_int(float x)
{
    int y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static inline float __saturatef(float x)
{
    return x < 0.0f ? 0.0f : x > 1.0f ? 1.0f : x;
}
static inline int __popc(unsigned int x)
{
    return __builtin_popcount(x);
}
static inline int __clz(int x)
{
    return x == 0 ? 32 : __builtin_clz((unsigned)x);
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline unsigned int __umulhi(unsigned int a, unsigned int b)
{
    return (unsigned int)(((unsigned long long)a * b) >> 32);
}
static inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void __threadfence_block()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void __threadfence_system()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

namespace gpushare_sim
{

/* Applies an operation atomically, for types that have no instruction of their own. */
template <typename T, typename Operation> static inline T update(T *address, Operation operation)
{
    T before, after;
    __atomic_load(address, &before, __ATOMIC_RELAXED);
    do
        after = operation(before);
    while (!__atomic_compare_exchange(address, &before, &after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return before;
}

template <typename T> struct same {
    using type = T;
};
template <typename T> using exactly = typename same<T>::type;

} // namespace gpushare_sim

template <typename T> static inline T atomicAdd(T *address, gpushare_sim::exactly<T> value)
{
    return gpushare_sim::update(address, [=](T old) { return (T)(old + value); });
}
template <typename T> static inline T atomicSub(T *address, gpushare_sim::exactly<T> value)
{
    return gpushare_sim::update(address, [=](T old) { return (T)(old - value); });
}
template <typename T> static inline T atomicMin(T *address, gpushare_sim::exactly<T> value)
{
    return gpushare_sim::update(address, [=](T old) { return value < old ? value : old; });
}
template <typename T> static inline T atomicMax(T *address, gpushare_sim::exactly<T> value)
{
    return gpushare_sim::update(address, [=](T old) { return old < value ? value : old; });
}
template <typename T> static inline T atomicExch(T *address, gpushare_sim::exactly<T> value)
{
    return gpushare_sim::update(address, [=](T) { return value; });
}
template <typename T> static inline T atomicAnd(T *address, gpushare_sim::exactly<T> value)
{
    return gpushare_sim::update(address, [=](T old) { return old & value; });
}
template <typename T> static inline T atomicOr(T *address, gpushare_sim::exactly<T> value)
{
    return gpushare_sim::update(address, [=](T old) { return old | value; });
}
template <typename T> static inline T atomicXor(T *address, gpushare_sim::exactly<T> value)
{
    return gpushare_sim::update(address, [=](T old) { return old ^ value; });
}
static inline unsigned int atomicInc(unsigned int *address, unsigned int limit)
{
    return gpushare_sim::update(address, [=](unsigned int old) { return old >= limit ? 0 : old + 1; });
}
template <typename T>
static inline T atomicCAS(T *address, gpushare_sim::exactly<T> compare, gpushare_sim::exactly<T> value)
{
    return gpushare_sim::update(address, [=](T old) { return old == compare ? value : old; });
}

namespace gpushare_sim
{

constexpr size_t shared_limit = 232448, fiber_stack = 128 * 1024;
constexpr unsigned fiber_limit = 1024;

/* Dynamic shared memory of the block that runs on this thread. */
static inline void *dynamic_shared()
{
    static thread_local void *memory = nullptr;
    if (memory == nullptr)
        memory =
            mmap(nullptr, shared_limit, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory;
}

#if GPUSHARE_SIM_FIBERS

/*
 * The threads of a block take turns on one host thread: each runs until its next barrier. A context starts a fiber
 * once; after that setjmp and longjmp switch, which unlike swapcontext need no system call.
 */
struct fiber {
    jmp_buf registers;
    uint3 index;
    bool started, done;
};

struct block {
    jmp_buf scheduler;
    fiber *fibers;
    char *stacks;
    fiber *current;
    void (*body)(void *);
    void *argument;
};

static thread_local block *running;

static __attribute__((noinline)) void yield(bool done)
{
    fiber *self = running->current;
    self->done = done;
    if (_setjmp(self->registers) == 0)
        _longjmp(running->scheduler, 1);
}

static void fiber_main()
{
    for (;;) {
        running->body(running->argument);
        yield(true);
    }
}

static __attribute__((noinline)) void resume(fiber *next)
{
    running->current = next;
    threadIdx = next->index;
    if (_setjmp(running->scheduler) != 0)
        return;
    if (next->started)
        _longjmp(next->registers, 1);
    next->started = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = running->stacks + (size_t)(next - running->fibers) * fiber_stack;
    context.uc_stack.ss_size = fiber_stack;
    context.uc_link = nullptr;
    makecontext(&context, fiber_main, 0);
    setcontext(&context);
}

static inline void prepare(void (*body)(void *), void *argument)
{
    static thread_local block own;
    if (own.fibers == nullptr) {
        own.fibers = new fiber[fiber_limit];
        own.stacks = (char *)mmap(nullptr, fiber_limit * fiber_stack, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    /* A kernel that faulted has left its fibers where they were: each launch starts anew. */
    for (unsigned i = 0; i < fiber_limit; i++)
        own.fibers[i].started = false;
    own.body = body;
    own.argument = argument;
    running = &own;
}

static inline void run_block()
{
    unsigned count = 0;
    for (unsigned z = 0; z < blockDim.z; z++)
        for (unsigned y = 0; y < blockDim.y; y++)
            for (unsigned x = 0; x < blockDim.x; x++) {
                running->fibers[count].index = {x, y, z};
                running->fibers[count++].done = false;
            }
    for (bool more = true; more;) {
        more = false;
        for (unsigned i = 0; i < count; i++) {
            if (running->fibers[i].done)
                continue;
            resume(&running->fibers[i]);
            more = more || !running->fibers[i].done;
        }
    }
}

#endif

template <typename Body> static inline void run_grid(Body &body, const unsigned *grid, const unsigned *block)
{
    gridDim = dim3(grid[0], grid[1], grid[2]);
    blockDim = dim3(block[0], block[1], block[2]);
#if GPUSHARE_SIM_FIBERS
    prepare([](void *argument) { (*static_cast<Body *>(argument))(); }, &body);
#endif
    for (unsigned bz = 0; bz < grid[2]; bz++)
        for (unsigned by = 0; by < grid[1]; by++)
            for (unsigned bx = 0; bx < grid[0]; bx++) {
                blockIdx = {bx, by, bz};
#if GPUSHARE_SIM_FIBERS
                run_block();
#else
                for (unsigned z = 0; z < block[2]; z++)
                    for (unsigned y = 0; y < block[1]; y++)
                        for (unsigned x = 0; x < block[0]; x++) {
                            threadIdx = {x, y, z};
                            body();
                        }
#endif
            }
}

template <auto function> struct kernel;

template <typename... Arguments, void (*function)(Arguments...)> struct kernel<function> {
    static constexpr unsigned count = sizeof...(Arguments);

    struct layout {
        unsigned sizes[count + 1], offsets[count + 1];
        constexpr layout() : sizes{sizeof(Arguments)..., 0}, offsets{}
        {
            constexpr unsigned alignments[] = {alignof(Arguments)..., 1};
            unsigned at = 0;
            for (unsigned i = 0; i < count; i++) {
                at = (at + alignments[i] - 1) / alignments[i] * alignments[i];
                offsets[i] = at;
                at += sizes[i];
            }
        }
    };
    static constexpr layout packed{};

    template <size_t... I>
    static void run(void *const *arguments, const unsigned *grid, const unsigned *block, std::index_sequence<I...>)
    {
        (void)arguments;
        std::tuple<std::remove_const_t<Arguments>...> values(
            *static_cast<std::remove_const_t<Arguments> *>(arguments[I])...);
        auto body = [&values] { function(std::get<I>(values)...); };
        run_grid(body, grid, block);
    }

    static void launch(void *const *arguments, const unsigned *grid, const unsigned *block, unsigned long)
    {
        run(arguments, grid, block, std::index_sequence_for<Arguments...>{});
    }

    static gpushare_sim_kernel describe()
    {
        return {reinterpret_cast<const void *>(function), launch, count, packed.sizes, packed.offsets};
    }
};

} // namespace gpushare_sim

#if GPUSHARE_SIM_FIBERS
static inline void __syncthreads()
{
    gpushare_sim::yield(false);
}
static inline void __syncwarp(unsigned = 0xffffffffu)
{
    gpushare_sim::yield(false);
}
#else
static inline void __syncwarp(unsigned = 0xffffffffu)
{
}
#endif
