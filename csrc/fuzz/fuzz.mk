# SPDX-License-Identifier: BSD-3-Clause
# The fuzzer's runner and its kernels (see ../benchmarks/fuzz.py): included by ../Makefile.

FUZZ_CFLAGS := -std=gnu11 -fPIC -fvisibility=hidden -pthread -Wall -Wextra -Werror -D_GNU_SOURCE \
    -include compat/glibc.h -isystem $(CUDA_INCLUDE)

fuzz: $(OUT)/fuzz/runner.so $(OUT)/fuzz/kernels.so

$(OUT)/fuzz/runner.so: fuzz/runner.c fuzz/mix.h $(STUBS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(FUZZ_CFLAGS) -shared -o $@ $< $(LIBRARIES)

$(OUT)/fuzz/kernels.so: fuzz/kernels.c fuzz/mix.h sim/kernel_abi.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(FUZZ_CFLAGS) -shared -o $@ $<

.PHONY: fuzz
