# Checks and tests of scripts, generated files, and installing.

# Tests of scripts in Python, a few seconds together.
PYTHON_TESTS := $(addprefix test/scripts/test_,cubin.py questions.py rows.py render_chat.py follow_run.py)
TEST_PYTHON = @if command -v python3 >/dev/null; then set -ex; \
	  for test in $(PYTHON_TESTS); do $$test; done; \
	else echo "skipped: $(notdir $(PYTHON_TESTS)), because there is no python3 here"; fi

#: make check          includes, instructions, links, style, and the tests of scripts
check: $(PROGRAMS) $(MODULE)
	scripts/check_layers.sh
	test/scripts/test_layers.sh
	test/scripts/test_links.py
	scripts/check_style.sh
	scripts/check_mutants.sh --flavors ''
	test/scripts/test_style.sh
	scripts/check_instructions.sh $(OUT)
	$(USE_PROGRAMS) scripts/generate.sh --check
	test/plain_criterion/check.sh
	$(if $(NVCC),$(MAKE) conformance,@echo "skipped: compiling the test of conformance, because there is no nvcc here")
	@if command -v shellcheck >/dev/null; then set -x; \
	  shellcheck -x scripts/*.sh scripts/slurm/*.sbatch test/scripts/*.sh test/external/*.sh test/plain_criterion/*.sh findings/*.sh .ci/run; \
	else echo "skipped: no shellcheck here"; fi
	$(TEST_PYTHON)
	test/scripts/test_fetch.sh
	test/scripts/test_plot.sh
ifeq ($(BUILD),fast)
	$(USE_PROGRAMS) test/scripts/test_compare_precisions.sh
	$(USE_PROGRAMS) test/scripts/test_readme.sh
	$(USE_PROGRAMS) test/scripts/test_regress.sh
	$(USE_PROGRAMS) test/scripts/test_pages.sh
	MAKE="$(MAKE)" test/scripts/test_install.sh
	MAKE="$(MAKE)" test/scripts/test_wheel.sh
	$(USE_PROGRAMS) test/scripts/test_ranks.sh
endif

#: make generate       refresh configs/schema.json and the keys in configs/README.md
generate: $(PROGRAMS)
	$(USE_PROGRAMS) scripts/generate.sh

#: make format         clang-format of all sources
format:
	git ls-files -z '*.c' '*.h' '*.cu' '*.cpp' | xargs -0 clang-format -i

#: make compile_commands  compile_commands.json, for clangd and clang-tidy
compile_commands:
	@$(MAKE) -nB --no-print-directory V=1 all $(OUT)/tests | awk -v folder='$(CURDIR)' ' \
	  / -c -o / { file = $$NF; gsub(/["\\]/, "\\\\&"); command[file] = $$0 } \
	  END { printf "["; for (file in command) { printf "%s\n{\"directory\": \"%s\", \"file\": \"%s\", \"command\": \"%s\"}", \
	    separator, folder, file, command[file]; separator = "," } print "\n]" }' >compile_commands.json

# ---- installing

# The programs find their configs/ next to themselves. Their links on the PATH have the prefix
# mantissa-, because other packages have a train and a compare too.
PREFIX  ?= /usr/local
DESTDIR ?=
HOME_OF_PROGRAMS = $(DESTDIR)$(PREFIX)/lib/mantissa
SCRIPTS_OF_USERS = $(addprefix scripts/,compare_precisions.sh fetch.sh follow_run.py get_data.sh \
                     get_eval.sh get_model.sh plot.py questions.py render_chat.py report.py \
                     report_page.py rows.py runs.py)
MAN     = $(DESTDIR)$(PREFIX)/share/man/man1
VERSION = $(shell sed -n 's/.*MANTISSA_VERSION "\(.*\)"/\1/p' data/util/program.h)

#: make install        programs, configs, scripts, man pages under PREFIX=/usr/local; uninstall
# Does not build: root may have another compiler on its path.
install:
	@test -x $(word 1,$(PROGRAMS)) || { echo "nothing is built yet: run make first" >&2; exit 1; }
	install -d "$(HOME_OF_PROGRAMS)/configs" "$(HOME_OF_PROGRAMS)/scripts" "$(DESTDIR)$(PREFIX)/bin" "$(MAN)"
	install -m 755 $(PROGRAMS) $(MODULE) "$(HOME_OF_PROGRAMS)"
	install -m 644 configs/*.json "$(HOME_OF_PROGRAMS)/configs"
	install -m 755 $(SCRIPTS_OF_USERS) "$(HOME_OF_PROGRAMS)/scripts"
	for name in $(notdir $(PROGRAMS)); do \
	  ln -sfn ../lib/mantissa/$$name "$(DESTDIR)$(PREFIX)/bin/mantissa-$$name" && \
	  scripts/man_page.sh "$(HOME_OF_PROGRAMS)/$$name" $$name $(VERSION) \
	    >"$(MAN)/mantissa-$$name.1" || exit 1; done

uninstall:
	rm -rf "$(HOME_OF_PROGRAMS)"
	for name in $(notdir $(PROGRAMS)); do \
	  rm -f "$(DESTDIR)$(PREFIX)/bin/mantissa-$$name" "$(MAN)/mantissa-$$name.1"; done

#: make dist           the committed sources as build/mantissa-VERSION.tar.gz
dist:
	mkdir -p build
	git archive --prefix=mantissa-$(VERSION)/ -o build/mantissa-$(VERSION).tar.gz HEAD
	@echo "  build/mantissa-$(VERSION).tar.gz"

#: make clean          remove everything built
clean:
	rm -rf build train train_mpi.so prepare compare

.PHONY: check clean generate format compile_commands install uninstall dist
