# SPDX-License-Identifier: BSD-3-Clause
# The programs that `gpushare bench` runs. Included by ../Makefile.

BENCH_CFLAGS := -std=gnu11 -fPIC -fvisibility=hidden -Wall -Wextra -Werror -D_GNU_SOURCE -include compat/glibc.h

bench: $(OUT)/bench/probe.so $(OUT)/bench/empty.so

$(OUT)/bench/probe.so: bench/probe.c | $(OUT)/bench
	$(CC) $(CFLAGS) $(LDFLAGS) $(BENCH_CFLAGS) -shared -o $@ $< -ldl

$(OUT)/bench/empty.so: bench/empty.c sim/kernel_abi.h | $(OUT)/bench
	$(CC) $(CFLAGS) $(LDFLAGS) $(BENCH_CFLAGS) -shared -o $@ $<

$(OUT)/bench:
	mkdir -p $@

.PHONY: bench
