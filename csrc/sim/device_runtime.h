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

/* Applies an operation atomically, for types without an instruction for it. */
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

typedef unsigned long long cudaGraphConditionalHandle;

static inline void cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned value)
{
    __atomic_store_n(&((gpushare_sim_condition *)handle)->value, value, __ATOMIC_RELEASE);
}

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

typedef unsigned long long cudaTextureObject_t, cudaSurfaceObject_t, CUtexObject, CUsurfObject;

enum cudaSurfaceBoundaryMode { cudaBoundaryModeZero, cudaBoundaryModeClamp, cudaBoundaryModeTrap };

namespace gpushare_sim
{

/* The type and number of a texel's channels as device code sees them. */
template <typename T> struct channels {
    using type = T;
    static constexpr int count = 1;
};
#define GPUSHARE_SIM_CHANNELS(scalar, name)                                                                            \
    template <> struct channels<name##1> {                                                                             \
        using type = scalar;                                                                                           \
        static constexpr int count = 1;                                                                                \
    };                                                                                                                 \
    template <> struct channels<name##2> {                                                                             \
        using type = scalar;                                                                                           \
        static constexpr int count = 2;                                                                                \
    };                                                                                                                 \
    template <> struct channels<name##4> {                                                                             \
        using type = scalar;                                                                                           \
        static constexpr int count = 4;                                                                                \
    };
GPUSHARE_SIM_CHANNELS(signed char, char)
GPUSHARE_SIM_CHANNELS(unsigned char, uchar)
GPUSHARE_SIM_CHANNELS(short, short)
GPUSHARE_SIM_CHANNELS(unsigned short, ushort)
GPUSHARE_SIM_CHANNELS(int, int)
GPUSHARE_SIM_CHANNELS(unsigned int, uint)
GPUSHARE_SIM_CHANNELS(float, float)
#undef GPUSHARE_SIM_CHANNELS

struct texel {
    double channel[4];
};

[[noreturn]] static inline void fault()
{
    for (;;)
        *(volatile int *)nullptr = 0;
}

static inline double half_value(unsigned bits)
{
    int exponent = (int)(bits >> 10 & 31), mantissa = (int)(bits & 1023);
    double value = exponent == 0    ? ldexp(mantissa, -24)
                   : exponent == 31 ? (mantissa == 0 ? HUGE_VAL : NAN)
                                    : ldexp(mantissa + 1024, exponent - 25);
    return bits >> 15 ? -value : value;
}

template <typename Raw> static inline double load(const char *at)
{
    Raw raw;
    memcpy(&raw, at, sizeof raw);
    return (double)raw;
}

static inline double scaled(double value, double most, bool as_integer)
{
    return as_integer ? value : value / most < -1.0 ? -1.0 : value / most;
}

static inline texel read_texel(const gpushare_sim_texture *t, const gpushare_sim_level *level, long x, long y, long z)
{
    unsigned size = t->channel_size;
    const char *at = level->base + (size_t)z * level->slice + (size_t)y * level->pitch + (size_t)x * size * t->channels;
    texel out = {{0, 0, 0, t->as_integer ? 0.0 : 1.0}};
    for (unsigned c = 0; c < t->channels; c++, at += size) {
        switch (t->format) {
        case 0x01:
            out.channel[c] = scaled(load<unsigned char>(at), 255.0, t->as_integer);
            break;
        case 0x02:
            out.channel[c] = scaled(load<unsigned short>(at), 65535.0, t->as_integer);
            break;
        case 0x03:
            out.channel[c] = load<unsigned int>(at);
            break;
        case 0x08:
            out.channel[c] = scaled(load<signed char>(at), 127.0, t->as_integer);
            break;
        case 0x09:
            out.channel[c] = scaled(load<short>(at), 32767.0, t->as_integer);
            break;
        case 0x0a:
            out.channel[c] = load<int>(at);
            break;
        case 0x10: {
            unsigned short bits;
            memcpy(&bits, at, sizeof bits);
            out.channel[c] = half_value(bits);
            break;
        }
        default:
            out.channel[c] = load<float>(at);
        }
    }
    return out;
}

/*
 * The index of a texel by the address mode; false: the border's colour. Wrap and mirror are only for normalized
 * coordinates.
 */
static inline bool address(const gpushare_sim_texture *t, unsigned dimension, long size, long *index)
{
    long i = *index;
    unsigned mode = t->address[dimension];
    if (mode == 3 && (i < 0 || i >= size))
        return false;
    if (t->normalized && mode == 0) {
        i %= size;
        i += i < 0 ? size : 0;
    } else if (t->normalized && mode == 2) {
        i %= 2 * size;
        i += i < 0 ? 2 * size : 0;
        i = i < size ? i : 2 * size - 1 - i;
    }
    *index = i < 0 ? 0 : i >= size ? size - 1 : i;
    return true;
}

static inline texel pick(const gpushare_sim_texture *t, const gpushare_sim_level *level, long x, long y, long z,
                         int dimensions)
{
    bool inside = address(t, 0, level->width, &x);
    if (dimensions > 1)
        inside = address(t, 1, level->height, &y) && inside;
    if (dimensions > 2)
        inside = address(t, 2, level->depth, &z) && inside;
    if (inside)
        return read_texel(t, level, x, y, z);
    return {{t->border[0], t->border[1], t->border[2], t->border[3]}};
}

/* The lower neighbour, and the distance of the point from it, with the 8 bits of precision of the hardware. */
static inline double neighbour(double coordinate, long *lower)
{
    double shifted = coordinate - 0.5, below = floor(shifted);
    *lower = (long)below;
    return floor((shifted - below) * 256.0 + 0.5) / 256.0;
}

template <typename T> static inline T convert(const texel &value)
{
    using scalar = typename channels<T>::type;
    scalar out[channels<T>::count];
    for (int c = 0; c < channels<T>::count; c++)
        out[c] = (scalar)value.channel[c];
    T result;
    static_assert(sizeof result == sizeof out, "a texel has one, two or four channels");
    memcpy(&result, out, sizeof result);
    return result;
}

static inline const gpushare_sim_texture *find_texture(unsigned long long object)
{
    const gpushare_sim_texture *t = (const gpushare_sim_texture *)object;
    if (t == nullptr || t->levels[0].base == nullptr)
        fault();
    return t;
}

/* With fewer than three dimensions, `z` is a layer and is not filtered. */
template <typename T>
static inline T sample(unsigned long long object, int dimensions, double x, double y, double z, float lod = 0.0f)
{
    const gpushare_sim_texture *t = find_texture(object);
    unsigned index = lod <= 0.0f ? 0 : (unsigned)(lod + 0.5f);
    const gpushare_sim_level *level = &t->levels[index < t->level_count ? index : t->level_count - 1];
    if (t->normalized) {
        x *= level->width;
        y *= dimensions > 1 ? level->height : 1;
        z *= dimensions > 2 ? level->depth : 1;
    }
    if (dimensions < 3) {
        z = z < 0 ? 0 : z >= level->depth ? level->depth - 1 : z;
    }
    if (t->filter == 0)
        return convert<T>(
            pick(t, level, (long)floor(x), dimensions > 1 ? (long)floor(y) : 0, (long)floor(z), dimensions));
    long i, j = 0, k = (long)z;
    double a = neighbour(x, &i), b = dimensions > 1 ? neighbour(y, &j) : 0.0;
    double c = dimensions > 2 ? neighbour(z, &k) : 0.0;
    texel sum = {{0, 0, 0, 0}};
    for (int corner = 0; corner < 8; corner++) {
        int dx = corner & 1, dy = corner >> 1 & 1, dz = corner >> 2;
        double weight = (dx ? a : 1 - a) * (dy ? b : 1 - b) * (dz ? c : 1 - c);
        if (weight == 0.0)
            continue;
        texel one = pick(t, level, i + dx, j + dy, k + dz, dimensions);
        for (int channel = 0; channel < 4; channel++)
            sum.channel[channel] += weight * one.channel[channel];
    }
    return convert<T>(sum);
}

/* The address in a surface; nullptr: outside, so that a read returns zero. */
static inline char *surface(unsigned long long object, long x, long y, long z, size_t size, int mode)
{
    const gpushare_sim_texture *t = find_texture(object);
    const gpushare_sim_level *level = &t->levels[0];
    long row = (long)level->width * t->channels * t->channel_size;
    bool inside = x >= 0 && x + (long)size <= row && y >= 0 && y < (long)level->height && z >= 0 &&
                  z < (long)level->depth && x % (long)size == 0;
    if (!inside && mode == cudaBoundaryModeTrap)
        fault();
    if (!inside && mode == cudaBoundaryModeZero)
        return nullptr;
    x = x < 0 ? 0 : x + (long)size > row ? row - (long)size : x;
    y = y < 0 ? 0 : y >= (long)level->height ? (long)level->height - 1 : y;
    z = z < 0 ? 0 : z >= (long)level->depth ? (long)level->depth - 1 : z;
    return level->base + (size_t)z * level->slice + (size_t)y * level->pitch + x;
}

template <typename T> static inline T surface_read(const char *at)
{
    T value{};
    if (at != nullptr)
        memcpy(&value, at, sizeof value);
    return value;
}

template <typename T> static inline void surface_write(char *at, const T &value)
{
    if (at != nullptr)
        memcpy(at, &value, sizeof value);
}

} // namespace gpushare_sim

template <typename T> static inline T tex1Dfetch(cudaTextureObject_t object, int x)
{
    const gpushare_sim_texture *t = gpushare_sim::find_texture(object);
    if (x < 0 || x >= (int)t->levels[0].width)
        return T{};
    return gpushare_sim::convert<T>(gpushare_sim::read_texel(t, &t->levels[0], x, 0, 0));
}
template <typename T> static inline T tex1D(cudaTextureObject_t object, float x)
{
    return gpushare_sim::sample<T>(object, 1, x, 0, 0);
}
template <typename T> static inline T tex1DLayered(cudaTextureObject_t object, float x, int layer)
{
    return gpushare_sim::sample<T>(object, 1, x, 0, layer);
}
template <typename T> static inline T tex2D(cudaTextureObject_t object, float x, float y)
{
    return gpushare_sim::sample<T>(object, 2, x, y, 0);
}
template <typename T> static inline T tex2DLod(cudaTextureObject_t object, float x, float y, float level)
{
    return gpushare_sim::sample<T>(object, 2, x, y, 0, level);
}
template <typename T> static inline T tex2DLayered(cudaTextureObject_t object, float x, float y, int layer)
{
    return gpushare_sim::sample<T>(object, 2, x, y, layer);
}
template <typename T> static inline T tex3D(cudaTextureObject_t object, float x, float y, float z)
{
    return gpushare_sim::sample<T>(object, 3, x, y, z);
}

template <typename T>
static inline T surf1Dread(cudaSurfaceObject_t object, int x, cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap)
{
    return gpushare_sim::surface_read<T>(gpushare_sim::surface(object, x, 0, 0, sizeof(T), mode));
}
template <typename T>
static inline void surf1Dwrite(T value, cudaSurfaceObject_t object, int x,
                               cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap)
{
    gpushare_sim::surface_write(gpushare_sim::surface(object, x, 0, 0, sizeof(T), mode), value);
}
template <typename T>
static inline T surf2Dread(cudaSurfaceObject_t object, int x, int y,
                           cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap)
{
    return gpushare_sim::surface_read<T>(gpushare_sim::surface(object, x, y, 0, sizeof(T), mode));
}
template <typename T>
static inline void surf2Dwrite(T value, cudaSurfaceObject_t object, int x, int y,
                               cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap)
{
    gpushare_sim::surface_write(gpushare_sim::surface(object, x, y, 0, sizeof(T), mode), value);
}
template <typename T>
static inline T surf3Dread(cudaSurfaceObject_t object, int x, int y, int z,
                           cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap)
{
    return gpushare_sim::surface_read<T>(gpushare_sim::surface(object, x, y, z, sizeof(T), mode));
}
template <typename T>
static inline void surf3Dwrite(T value, cudaSurfaceObject_t object, int x, int y, int z,
                               cudaSurfaceBoundaryMode mode = cudaBoundaryModeTrap)
{
    gpushare_sim::surface_write(gpushare_sim::surface(object, x, y, z, sizeof(T), mode), value);
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
 * The threads of a block run alternately on one host thread: each runs until its next barrier. A context starts a fiber
 * once. Afterwards setjmp and longjmp switch, which unlike swapcontext need no system call.
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
    /* A kernel that faulted has left its fibers in the middle, so each launch starts them again. */
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
