# SPDX-License-Identifier: BSD-3-Clause
# The fuzzer's runner and its kernels (see ../tests/fuzz/random_programs.py). Included by ../Makefile.

FUZZ_CFLAGS := -std=gnu11 -fPIC -fvisibility=hidden -pthread -Wall -Wextra -Werror -D_GNU_SOURCE \
    -include compat/glibc.h -isystem $(CUDA_INCLUDE)
FUZZ_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(filter-out fuzz/kernels.c,$(wildcard fuzz/*.c)))

fuzz: $(OUT)/fuzz/runner.so $(OUT)/fuzz/kernels.so

$(FUZZ_OBJECTS): $(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(FUZZ_CFLAGS) -MMD -MP -c -o $@ $<

$(OUT)/fuzz/runner.so: $(FUZZ_OBJECTS) $(STUBS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -pthread -shared -o $@ $(FUZZ_OBJECTS) $(LIBRARIES)

$(OUT)/fuzz/kernels.so: fuzz/kernels.c fuzz/mix.h sim/kernel_abi.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) $(FUZZ_CFLAGS) -shared -o $@ $<

.PHONY: fuzz

-include $(FUZZ_OBJECTS:.o=.d)
