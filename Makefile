# mantissa: make, make test, make bench. `make help` lists all targets.
#
# BUILD names a flavor of the build; each has its own folder under build/.
#   BUILD=fast (default)      optimized for this machine (ARCH=native; set ARCH= for others)
#   BUILD=sanitize            AddressSanitizer and UndefinedBehaviorSanitizer

BUILD ?= fast
ARCH  ?= native
CC    ?= cc
OUT   := build/$(BUILD)

CFLAGS ?= -O3
WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith
OPTIONS  := -std=gnu11 -D_GNU_SOURCE -g -fopenmp -I. $(WARNINGS) -MMD -MP
ifneq ($(ARCH),)
OPTIONS += -march=$(ARCH)
# Zen 5 and Sapphire Rapids run 512-bit vectors at full speed; gcc by default avoids them.
OPTIONS += $(shell $(CC) -march=$(ARCH) -mprefer-vector-width=512 -E -x c /dev/null >/dev/null 2>&1 \
             && echo -mprefer-vector-width=512)
endif
ifeq ($(BUILD),sanitize)
OPTIONS += -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
CFLAGS  := -O1
endif
LIBRARIES := -lcjson -ldnnl -lm
LINK = $(CC) $(OPTIONS) $(CFLAGS) $(LDFLAGS) -o $@ $^

DATA_SOURCES    := $(filter-out data/prepare.c,$(wildcard data/*.c))
LIBRARY_SOURCES := $(DATA_SOURCES) $(wildcard kernels/*.c kernels/cpu/*.c model/*.c)
TEST_SOURCES    := $(wildcard test/data/*.c test/kernels/*.c test/model/*.c)
BENCH_SOURCES   := test/bench.c

object = $(patsubst %.c,$(OUT)/%.o,$(1))
LIBRARY := $(OUT)/libmantissa.a

ifeq ($(BUILD),fast)
PROGRAMS := train prepare
else
PROGRAMS := $(OUT)/train $(OUT)/prepare
endif

.PHONY: all test test-sanitize bench check lint schema clean help
.SUFFIXES:

all: $(PROGRAMS)

train prepare: %: $(OUT)/%
	cp $< $@.new && mv $@.new $@

$(OUT)/train: $(OUT)/train.o $(LIBRARY)
	$(LINK) $(LIBRARIES)

$(OUT)/prepare: $(OUT)/data/prepare.o $(call object,$(DATA_SOURCES))
	$(LINK) -lm

$(LIBRARY): $(call object,$(LIBRARY_SOURCES))
	rm -f $@ && $(AR) rcs $@ $^

$(OUT)/tests: $(call object,$(TEST_SOURCES)) $(LIBRARY)
	$(LINK) $(LIBRARIES) -lcriterion

$(OUT)/bench: $(call object,$(BENCH_SOURCES)) $(LIBRARY)
	$(LINK) $(LIBRARIES)

$(OUT)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(OPTIONS) $(CFLAGS) $(CPPFLAGS) -c -o $@ $<

# The tests run the programs too, by these paths.
test: $(OUT)/tests $(PROGRAMS) check
	TRAIN=$(if $(filter fast,$(BUILD)),./train,$(OUT)/train) \
	PREPARE=$(if $(filter fast,$(BUILD)),./prepare,$(OUT)/prepare) \
	OMP_NUM_THREADS=2 $(OUT)/tests --jobs 2

test-sanitize:
	$(MAKE) BUILD=sanitize test

bench: $(OUT)/bench
	$(OUT)/bench

check:
	scripts/check_floors.sh

# Refreshes what is generated from the option table.
schema: train
	./train --print-schema > configs/schema.json

clean:
	rm -rf build train prepare

help:
	@echo "make                build ./train and ./prepare"
	@echo "make test           all tests"
	@echo "make test-sanitize  all tests under AddressSanitizer and UBSan"
	@echo "make bench          GPT-2 124M: ms per step by part, tokens/s, ratio to bare products"
	@echo "make schema         regenerate configs/schema.json"
	@echo "make clean          remove everything built"

-include $(wildcard $(OUT)/*.d $(OUT)/*/*.d $(OUT)/*/*/*.d)
