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

# what only main programs use, and may end the process, stays out of the library
LIB_OBJ := $(call obj,$(filter-out common/program.c,$(COMMON_SRC)) $(WORKER_SRC))
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
	$(Q)$(CC) -shared -Wl,-soname,libtally.so.$(SOVERSION) -Wl,-z,defs -Wl,-z,nodelete $(ALL_LDFLAGS) -o $@ $^ $(ZMQ_LIBS) -lm

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
BENCH_TEST_OBJ := $(addprefix $(BUILD)/bench/,limits_tcp.o limits_zmq.o machine.o measure.o model.o \
	pair.o parse.o plain.o processes.o tables.o transport.o values.o)
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

# ---- unit tests, golden bytes, fuzzing ----

# Every allocation of our own code in a unit test can be made to fail: tests/lib/failing.h.
WRAPPED := malloc calloc realloc aligned_alloc strdup vasprintf
$(UNIT_TESTS): ALL_LDFLAGS += $(addprefix -Wl$(comma)--wrap=,$(WRAPPED))

# Each tests/fuzz/fuzz_NAME.c is built twice: with replay.c as a plain program that gives its corpus to
# the code once (any compiler, any SAN), and by `make fuzz` with libFuzzer (clang; Debian:
# libclang-rt-14-dev), which goes on for FUZZ_SECONDS each and leaves what it finds in build/fuzz.
FUZZ_SECONDS ?= 10
FUZZ_CC ?= clang
FUZZ_NAMES := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_REPLAYS := $(addprefix $(BUILD)/tests/fuzz/replay_,$(FUZZ_NAMES))

$(BUILD)/tests/fuzz/replay_%: $(BUILD)/tests/fuzz/fuzz_%.o $(BUILD)/tests/fuzz/fuzz.o $(BUILD)/tests/fuzz/replay.o $(CORE_OBJ)
	@$(if $(V),:,echo "  LD $@")
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(ZMQ_LIBS) -lm

fuzz-replays: $(FUZZ_REPLAYS)
test-programs: fuzz-replays

# What CI runs without clang: every known input once.
fuzz-replay: $(FUZZ_REPLAYS)
	$(Q)for name in $(FUZZ_NAMES); do \
		$(BUILD)/tests/fuzz/replay_$$name tests/fuzz/corpus/$$name || exit 1; \
	done

$(BUILD)/tests/fuzz/libfuzz_%: $(BUILD)/tests/fuzz/fuzz_%.o $(BUILD)/tests/fuzz/fuzz.o $(CORE_OBJ)
	@$(if $(V),:,echo "  LD $@")
	$(Q)$(CC) $(ALL_LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(ZMQ_LIBS) -lm

fuzzers: $(addprefix $(BUILD)/tests/fuzz/libfuzz_,$(FUZZ_NAMES))

FUZZ_DIR ?= build/fuzz
fuzz:
	$(Q)$(MAKE) --no-print-directory BUILD=$(FUZZ_DIR) CC=$(FUZZ_CC) SAN=address \
		CFLAGS="-fsanitize=fuzzer-no-link $(CFLAGS)" fuzzers
	$(Q)for name in $(FUZZ_NAMES); do \
		mkdir -p $(FUZZ_DIR)/found/$$name; \
		$(FUZZ_DIR)/tests/fuzz/libfuzz_$$name -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -timeout=10 \
			-rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix=$(FUZZ_DIR)/$$name- \
			$(FUZZ_DIR)/found/$$name tests/fuzz/corpus/$$name >$(FUZZ_DIR)/$$name.log 2>&1 || \
			{ tail -n 60 $(FUZZ_DIR)/$$name.log; exit 1; }; \
		echo "  $$name: $$(sed -n 's/^stat::number_of_executed_units: *//p' $(FUZZ_DIR)/$$name.log) inputs, none bad"; \
	done

.PHONY: fuzz fuzzers fuzz-replay fuzz-replays

# ---- tests ----

unit-programs: $(UNIT_TESTS)
proc-programs: $(PROC_PROGRAMS)
sim-program: $(BUILD)/tests/sim/sim
test-programs: unit-programs proc-programs sim-program

# Everything that CI runs: installs what is missing, builds, tests. The last line counts.
check: deps
	$(Q)$(MAKE) --no-print-directory test

test:
	$(Q)$(PYTHON) tests/run.py --make "$(MAKE)"

# ---- what users do ----

# A whole job on this machine: scheduler, 2 servers and 2 workers exchange the gradients of two models.
DEMO_STEPS ?= 5
demo: deps
	$(Q)$(MAKE) --no-print-directory all
	$(Q)for model in vgg16 resnet50; do \
		$(BUILD)/tally-launch --local --workers 2 --servers 2 -- \
			$(BUILD)/tally-bench traffic --model $$model --steps $(DEMO_STEPS) || exit 1; \
	done

deps:
	$(Q)scripts/install-packages

# Regenerate the README's table of settings.
readme: $(BUILD)/tally-scheduler
	$(Q)scripts/readme-table $(BUILD)/tally-scheduler README.md

install: all
	install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/bin
	install -m 644 worker/tally.h $(DESTDIR)$(PREFIX)/include/tally.h
	install -m 644 $(BUILD)/libtally.a $(DESTDIR)$(PREFIX)/lib/libtally.a
	install -m 755 $(BUILD)/libtally.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libtally.so.$(VERSION)
	ln -sf libtally.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libtally.so.$(SOVERSION)
	ln -sf libtally.so.$(SOVERSION) $(DESTDIR)$(PREFIX)/lib/libtally.so
	install -m 755 $(PROGRAMS) $(BUILD)/tally-launch $(DESTDIR)$(PREFIX)/bin
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' scripts/tally.pc.in \
		>$(DESTDIR)$(PREFIX)/lib/pkgconfig/tally.pc

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/include/tally.h $(DESTDIR)$(PREFIX)/lib/libtally.* \
		$(DESTDIR)$(PREFIX)/lib/pkgconfig/tally.pc \
		$(addprefix $(DESTDIR)$(PREFIX)/bin/,tally-scheduler tally-server tally-bench tally-launch)

clean:
	rm -rf build

help:
	@echo 'make demo           install packages, build, run a job on this machine with VGG16 and ResNet50 traffic'
	@echo 'make check          install packages, build, run all tests (what CI runs)'
	@echo 'make                build libtally.so, libtally.a, tally-scheduler, tally-server, tally-bench, tally-launch'
	@echo 'make install        into $$(DESTDIR)$$(PREFIX), with tally.pc; uninstall takes it away'
	@echo 'make test           the tests alone, without installing packages'
	@echo 'make test-programs  build the tests; make fuzz: fuzz the decoders and cores (clang)'
	@echo 'make readme         regenerate the table of settings in README.md'
	@echo 'make clean          remove build/'
	@echo 'SAN=address|thread|undefined builds with a sanitizer, DEBUG=1 for a debugger; V=1 shows commands'

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

.PHONY: all check test demo deps readme install uninstall clean help FORCE
.PHONY: test-programs unit-programs proc-programs sim-program
.PRECIOUS: $(BUILD)/%.o
