# SPDX-License-Identifier: BSD-3-Clause
# The simulated driver, NVML and NVRTC: included by csrc/Makefile.

SIM_CFLAGS := $(GS_CFLAGS) -U_FORTIFY_SOURCE -Isim -isystem $(CUDA_INCLUDE) -isystem $(NVML_INCLUDE)
SIM_SEGMENT_SOURCES := $(wildcard sim/base/*.c) $(wildcard sim/segment/*.c)
SIM_CUDA_SOURCES := $(filter-out sim/nvml.c,$(sort $(wildcard sim/*.c) $(SIM_SEGMENT_SOURCES)))
SIM_CUDA_OBJECTS := $(SIM_CUDA_SOURCES:%.c=$(BUILD)/%.o) $(BUILD)/sim/entries.o
SIM_NVML_OBJECTS := $(BUILD)/sim/nvml.o $(SIM_SEGMENT_SOURCES:%.c=$(BUILD)/%.o)
SIM_NVRTC_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(wildcard sim/nvrtc/*.c))

$(BUILD)/sim/%.o: sim/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CPPFLAGS) $(SIM_CFLAGS) -c $< -o $@

# The exported functions: each passes the gate and calls the function of a module.
$(BUILD)/sim/entries.c: sim/entries.py sim/symbols.def $(GENERATOR) $(BUILD)/flags
	@mkdir -p $(@D)
	$(PYTHON) sim/entries.py $@ '$(CC)' $(CUDA_INCLUDE)
	@touch $@

$(BUILD)/sim/entries.o: $(BUILD)/sim/entries.c
	$(CC) $(CFLAGS) $(CPPFLAGS) $(SIM_CFLAGS) -c $< -o $@

# The simulated NVRTC contains the headers that precede every source.
$(BUILD)/sim/nvrtc/nvrtc.o: sim/device_runtime.h sim/kernel_abi.h

$(OUT)/sim/libcuda.so.1: $(SIM_CUDA_OBJECTS) $(STUBS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(GS_LDFLAGS) $(LDFLAGS) -Wl,-soname,libcuda.so.1 $(SIM_CUDA_OBJECTS) $(LIBRARIES) -o $@

$(OUT)/sim/libnvidia-ml.so.1: $(SIM_NVML_OBJECTS) $(STUBS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(GS_LDFLAGS) $(LDFLAGS) -Wl,-soname,libnvidia-ml.so.1 $(SIM_NVML_OBJECTS) $(LIBRARIES) -o $@

$(OUT)/sim/libnvrtc.so.13: $(SIM_NVRTC_OBJECTS) $(STUBS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(GS_LDFLAGS) $(LDFLAGS) -Wl,-soname,libnvrtc.so.13 $(SIM_NVRTC_OBJECTS) $(LIBRARIES) -o $@

sim: $(addprefix $(OUT)/sim/,libcuda.so.1 libnvidia-ml.so.1 libnvrtc.so.13)

-include $(SIM_CUDA_OBJECTS:.o=.d) $(SIM_NVML_OBJECTS:.o=.d) $(SIM_NVRTC_OBJECTS:.o=.d)
