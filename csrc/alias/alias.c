/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * libgpushare-alias.so has the SONAME libcuda.so and no code. Preloaded after libgpushare.so, it makes
 * dlopen("libcuda.so"), which numba and others try first, find the interposer by way of its DT_NEEDED libcuda.so.1.
 */
