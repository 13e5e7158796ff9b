# SPDX-License-Identifier: BSD-3-Clause
# The helper that asks the driver to checkpoint and restore other processes. Included by ../Makefile.

HIBERNATOR_CFLAGS := $(GS_CFLAGS) -fPIE -Ihibernator -Iinterposer -isystem $(CUDA_INCLUDE)
HIBERNATOR_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(wildcard hibernator/*.c)) $(addprefix $(BUILD)/hibernator/,loader/locate.o base/print.o)

$(BUILD)/hibernator/%.o: hibernator/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(HIBERNATOR_CFLAGS) -c -o $@ $<

$(BUILD)/hibernator/loader/locate.o $(BUILD)/hibernator/base/print.o: $(BUILD)/hibernator/%.o: interposer/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(HIBERNATOR_CFLAGS) -c -o $@ $<

$(OUT)/gpushare-hibernator: $(HIBERNATOR_OBJECTS) $(STUBS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -pie -pthread -Wl,-z,relro,-z,now,-z,noexecstack,--hash-style=gnu \
	    $(if $(SANITIZE),-fsanitize=$(SANITIZE)) -o $@ $(HIBERNATOR_OBJECTS) $(LIBRARIES)

-include $(HIBERNATOR_OBJECTS:.o=.d)
