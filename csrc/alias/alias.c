/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * libgpushare-alias.so has the SONAME libcuda.so and no code. It is preloaded after libgpushare.so. Numba and other
 * libraries first try dlopen("libcuda.so"), which then finds the interposer through the alias's DT_NEEDED libcuda.so.1.
 */
