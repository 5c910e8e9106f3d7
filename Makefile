# Tally. `make help` lists the targets; V=1 shows commands; SAN=address|thread|undefined picks a
# sanitizer build in a directory of its own.
VERSION := 0.1.0
SOVERSION := 0

PREFIX ?= /usr/local
CC ?= gcc
PKG_CONFIG ?= pkg-config
PYTHON ?= python3

SAN ?=
DEBUG ?=
FLAVOUR := $(if $(SAN),$(SAN),$(if $(DEBUG),debug,release))
BUILD ?= build/$(FLAVOUR)
Q := $(if $(V),,@)

OPT := $(if $(SAN),-O1 -g -fno-omit-frame-pointer,$(if $(DEBUG),-O0 -g,-O2 -g))
comma := ,
SANFLAGS := $(if $(SAN),-fsanitize=$(if $(filter address,$(SAN)),address$(comma)undefined -fno-sanitize-recover=undefined,$(SAN))$(if $(filter undefined,$(SAN)), -fno-sanitize-recover=undefined))

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla -Wundef
ALL_CFLAGS := -std=c11 -D_GNU_SOURCE -I. $(OPT) $(WARN) -fvisibility=hidden -fPIC -pthread $(SANFLAGS) \
	-DTLY_VERSION='"$(VERSION)"' $(CFLAGS)
ALL_LDFLAGS := -pthread $(SANFLAGS) $(LDFLAGS)

ZMQ_CFLAGS = $(shell $(PKG_CONFIG) --cflags libzmq)
ZMQ_LIBS = $(shell $(PKG_CONFIG) --libs libzmq)
JSON_LIBS = $(shell $(PKG_CONFIG) --libs jansson)

COMMON_SRC := $(wildcard common/*.c)
WORKER_SRC := $(wildcard worker/*.c)
SCHED_SRC := $(wildcard scheduler/*.c)
SERVER_SRC := $(wildcard server/*.c)
BENCH_SRC := $(wildcard bench/*.c)
obj = $(patsubst %.c,$(BUILD)/%.o,$(1))

LIB_OBJ := $(call obj,$(COMMON_SRC) $(WORKER_SRC))
# the cores of every role without their main programs, for tests
CORE_OBJ := $(call obj,$(filter-out %/main.c,$(COMMON_SRC) $(WORKER_SRC) $(SCHED_SRC) $(SERVER_SRC)))

PROGRAMS := $(BUILD)/tally-scheduler $(BUILD)/tally-server $(BUILD)/tally-bench
LIBS := $(BUILD)/libtally.a $(BUILD)/libtally.so
UNIT_SRC := $(wildcard tests/unit/*/test_*.c)
UNIT_TESTS := $(patsubst %.c,$(BUILD)/%,$(UNIT_SRC))
TEST_LIB_SRC := $(wildcard tests/lib/*.c)
TEST_LIB_OBJ := $(call obj,$(TEST_LIB_SRC))
# small host programs that the process tests run
PROC_SRC := $(wildcard tests/proc/*.c)
PROC_PROGRAMS := $(patsubst %.c,$(BUILD)/%,$(PROC_SRC))

all: $(LIBS) $(PROGRAMS) $(BUILD)/tally-launch

# A changed compiler or flag rebuilds everything of this flavour.
FLAGS_NOW := $(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS)
$(BUILD)/flags: FORCE
	@mkdir -p $(@D); echo '$(FLAGS_NOW)' | cmp -s - $@ || echo '$(FLAGS_NOW)' >$@
FORCE:

# The kernels are compiled once per instruction set. On other machines the two files are empty tables.
ifneq ($(findstring x86_64,$(shell $(CC) -dumpmachine)),)
$(BUILD)/common/reduce_avx2.o: ALL_CFLAGS += -mavx2 -mfma -mf16c -O3
$(BUILD)/common/reduce_avx512.o: ALL_CFLAGS += -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c -O3
endif
$(BUILD)/common/reduce_base.o: ALL_CFLAGS += -O3
$(BUILD)/common/reduce%.o: ALL_CFLAGS += -ffp-contract=off

$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	@$(if $(V),:,echo "  CC $<")
	$(Q)$(CC) $(ALL_CFLAGS) $(ZMQ_CFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/libtally.a: $(LIB_OBJ)
	@$(if $(V),:,echo "  AR $@")
	$(Q)rm -f $@; $(AR) rcs $@ $^

$(BUILD)/libtally.so.$(VERSION): $(LIB_OBJ)
	@$(if $(V),:,echo "  LD $@")
	$(Q)$(CC) -shared -Wl,-soname,libtally.so.$(SOVERSION) -Wl,-z,defs $(ALL_LDFLAGS) -o $@ $^ $(ZMQ_LIBS) -lm

$(BUILD)/libtally.so: $(BUILD)/libtally.so.$(VERSION)
	$(Q)ln -sf libtally.so.$(VERSION) $(BUILD)/libtally.so.$(SOVERSION)
	$(Q)ln -sf libtally.so.$(SOVERSION) $@

$(BUILD)/tally-scheduler: $(call obj,$(SCHED_SRC) $(COMMON_SRC))
$(BUILD)/tally-server: $(call obj,$(SERVER_SRC) $(COMMON_SRC))
$(BUILD)/tally-bench: $(call obj,$(BENCH_SRC)) $(BUILD)/libtally.a
$(BUILD)/tally-bench: LIBS_EXTRA = $(JSON_LIBS)
$(PROGRAMS):
	@$(if $(V),:,echo "  LD $@")
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS_EXTRA) $(ZMQ_LIBS) -lm

# The model tables are part of the benchmark: bench/tables.c takes them in. The unit tests need what
# bench/ has without JSON and without a main program.
$(BUILD)/bench/tables.o: $(wildcard bench/models/*.txt)
BENCH_TEST_OBJ := $(addprefix $(BUILD)/bench/,measure.o model.o parse.o tables.o values.o)
$(filter $(BUILD)/tests/unit/bench/%,$(UNIT_TESTS)): $(BENCH_TEST_OBJ)

$(BUILD)/tally-launch: scripts/tally-launch
	$(Q)mkdir -p $(@D); install -m 755 $< $@

$(BUILD)/tests/unit/%: $(BUILD)/tests/unit/%.o $(TEST_LIB_OBJ) $(CORE_OBJ)
	@$(if $(V),:,echo "  LD $@")
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(ZMQ_LIBS) -lcmocka -lm

$(BUILD)/tests/sim/sim: $(call obj,$(wildcard tests/sim/*.c)) $(CORE_OBJ)
	@$(if $(V),:,echo "  LD $@")
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(ZMQ_LIBS) -lm

$(BUILD)/tests/proc/%: $(BUILD)/tests/proc/%.o $(BUILD)/libtally.a
	@$(if $(V),:,echo "  LD $@")
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(ZMQ_LIBS) -lm

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

.PHONY: all FORCE
